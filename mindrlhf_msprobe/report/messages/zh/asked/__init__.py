"""What was asked for wrongly, or cannot be done: arguments, settings, patterns, calls."""
