"""What each operator computes, by its name: the same whatever stands in its place at run time."""
