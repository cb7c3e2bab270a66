"""Training against inference: where the same token first gets other values in the rollout network.

sides.py reads a phase, rows/pairs.py lines up the values of both by token and compares rows,
weights.py compares parameters, growth.py finds the cells in which error begins, conclude.py says
what is to blame, find.py concludes.
"""
