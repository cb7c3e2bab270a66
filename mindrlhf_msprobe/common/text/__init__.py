"""Texts: the language of answers, patterns, numbers as words, and what may be printed."""
