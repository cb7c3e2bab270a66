"""Parameters of the texts of weights and gradients."""

_COUNTS = {"count": 2, "first": "layers.0.weight", "total": 27}

EXAMPLES = {
    "not_synchronised": [{**_COUNTS, "still": None}, {**_COUNTS, "still": 3}],
    "reference": [{**_COUNTS, "random": False}, {**_COUNTS, "random": True}],
    "large_update": [{"count": 2, "first": "layers.0.weight", "share": 0.75}],
}
