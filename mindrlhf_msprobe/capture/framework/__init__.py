"""MindSpore's inside, and Python's: what is not public."""
