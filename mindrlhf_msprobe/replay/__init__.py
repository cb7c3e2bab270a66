"""A recorded entry computed again: in higher precision, and as a script."""
