"""Batches of unlike size: which rows of one are those of the other."""
