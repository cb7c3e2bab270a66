"""Answers on what was recorded, on the console."""
