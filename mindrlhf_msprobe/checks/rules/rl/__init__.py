"""What reinforcement learning must satisfy, asked of a step's key data."""
