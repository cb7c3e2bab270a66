"""A pair of records → its status and its numbers."""
