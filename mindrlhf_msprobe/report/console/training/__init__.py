"""What belongs to a training before it is recorded, on the console."""
