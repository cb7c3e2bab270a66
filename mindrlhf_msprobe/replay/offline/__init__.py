"""Recorded entries computed again, offline: the folder with a script, and the table of all."""
