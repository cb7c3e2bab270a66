"""Findings in causal order → the first divergence, its cause, and what to record next."""
