"""Rows of values of both phases: brought together by token, and how far they are apart."""
