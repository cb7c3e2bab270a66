"""Commands around a training: before it, instead of its own command line, and behind it."""
