"""What a switched-on probe does: openings of phases, key data, the open step."""
