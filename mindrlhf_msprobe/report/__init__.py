"""Findings → tables, verdict.json and the console. Knows findings only; opens no dump."""
