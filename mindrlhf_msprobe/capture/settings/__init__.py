"""What a run and its networks are set to."""
