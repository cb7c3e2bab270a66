"""Trainers that get the probe without an edit of their source."""
