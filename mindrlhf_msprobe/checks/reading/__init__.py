"""One pass over a run: its entries and steps as rules see them."""
