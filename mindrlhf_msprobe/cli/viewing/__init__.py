"""Commands that show what was recorded."""
