"""What beyond a cell is to blame: the optimizer, the loss, the weights, the choice of a token."""
