"""Where the first NaN or infinity was born, and how it spread."""
