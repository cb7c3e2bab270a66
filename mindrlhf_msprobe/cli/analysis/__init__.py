"""Commands that judge what was recorded."""
