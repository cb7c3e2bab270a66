"""Live network → records. The only core package that imports MindSpore, and only in eager.py and
hooks.py."""
