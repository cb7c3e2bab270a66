"""What to record next, and how much room that takes."""
