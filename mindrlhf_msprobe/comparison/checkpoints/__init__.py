"""Two checkpoints → what their parameters are to each other, in pieces of a few MiB."""
