"""Records → files of one rank; who may write into a run's directory, and what of it is whose."""
