"""Live network → records. The only core package that imports MindSpore, and only in eager.py,
hooks.py and the modules whose names begin with graph."""
