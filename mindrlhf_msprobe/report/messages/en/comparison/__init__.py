"""What a comparison answers, and why."""
