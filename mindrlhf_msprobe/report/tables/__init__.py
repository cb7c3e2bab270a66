"""Findings → tables."""
