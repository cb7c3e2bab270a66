"""One step of one rank: compared, counted and folded."""
