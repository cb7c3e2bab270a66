"""Which axes of a tensor are tokens: those of rows, and those of keys."""
