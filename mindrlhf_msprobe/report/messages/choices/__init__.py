"""What both languages decide alike: which pieces of a text the parameters choose."""
