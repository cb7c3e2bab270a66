"""Experiments: a trainer runs again, with another run's tensors or settings, and is compared."""
