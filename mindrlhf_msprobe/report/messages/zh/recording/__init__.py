"""What a run says of itself: what is not recorded, what was lost, what cannot be read."""
