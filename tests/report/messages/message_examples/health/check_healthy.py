"""Parameters of the texts of a run against healthy ones."""

_SAID = ("finite", "dtype", "shape", "range", "unknown", "calls", "drift")

EXAMPLES = {name: [{"others": 0}, {"others": 3}] for name in _SAID}
