"""What was recorded, on the console."""
