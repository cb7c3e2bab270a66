"""Findings → text for the console."""
