"""One quantity over the steps of a run: recorded and derived series, gradients of two runs."""
