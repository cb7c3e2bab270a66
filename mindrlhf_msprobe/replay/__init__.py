"""A recorded entry computed again: in higher precision, disturbed, as a script."""
