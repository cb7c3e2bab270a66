"""Training against inference: where the same token first gets other values in the rollout network.

sides.py reads a phase, pairs.py lines up the values of both by token and compares rows,
weights.py compares parameters, births.py finds the cells in which error begins, find.py concludes.
"""
