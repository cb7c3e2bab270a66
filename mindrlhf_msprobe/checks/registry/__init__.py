"""Which rules there are, and which of them run with which thresholds."""
