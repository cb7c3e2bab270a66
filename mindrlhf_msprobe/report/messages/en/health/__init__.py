"""What the checks of one run say, in English."""
