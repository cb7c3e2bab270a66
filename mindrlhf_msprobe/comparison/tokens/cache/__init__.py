"""Blocks of a paged cache: how large they are, and which samples share them."""
