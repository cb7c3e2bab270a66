"""Which record of A meets which of B. Pure: no file is opened."""
