"""What the page shows of each place: a step, rank and phase."""
