"""Experiments: a trainer runs again, with another run's tensors or settings, and is compared.

`prove` puts A's tensors into B where the two first differ, until everything agrees: `prove.py`
makes the rounds, `places.py` decides what is put in. `hunt` tries settings, variables, packages or
commits until the smallest set is left that makes a run bad: `hunt.py` makes the trials,
`differences.py` knows what can be tried. `trials.py` runs the user's command, for both.
"""
