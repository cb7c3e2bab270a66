"""The names of the older tools, with their meaning and without their faults."""
