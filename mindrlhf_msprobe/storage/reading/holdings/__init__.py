"""What a run holds, what it leaves out by choice, and how much room more of it would take."""
