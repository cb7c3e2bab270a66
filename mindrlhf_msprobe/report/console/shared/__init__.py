"""What the texts for the console share."""
