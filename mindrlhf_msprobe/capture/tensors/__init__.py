"""Nested values → leaves → statistics and fingerprints."""
