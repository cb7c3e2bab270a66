"""The folder that `replay` writes: a script, and what was recorded of one entry."""
