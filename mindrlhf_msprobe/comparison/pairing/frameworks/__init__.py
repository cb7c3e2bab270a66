"""A network on MindSpore against the same one on PyTorch: names, records and weights.

presets.py knows what cells are called, records.py which record of a cell is which and brings
cells together of which one does what several do, and step.py applies them to one step.
"""
