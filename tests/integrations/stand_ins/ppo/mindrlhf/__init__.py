"""A stand-in for MindRLHF."""
