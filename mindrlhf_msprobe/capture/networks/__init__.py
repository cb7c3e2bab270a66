"""The cells of a network: their names, their arguments, which are recomputed."""
