"""Files → a run as an object."""
