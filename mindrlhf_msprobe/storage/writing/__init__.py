"""Records → files of one rank."""
