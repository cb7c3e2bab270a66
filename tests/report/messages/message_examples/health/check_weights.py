"""Parameters of the texts of weights and gradients."""

_COUNTS = {"count": 2, "first": "layers.0.weight", "total": 27}

EXAMPLES = {
    "not_synchronised": [{**_COUNTS, "still": None}, {**_COUNTS, "still": 3}],
    "reference": [{**_COUNTS, "random": False}, {**_COUNTS, "random": True}],
    "moved_inside": [_COUNTS, {**_COUNTS, "count": 1}],
    "moved_reference": [_COUNTS, {**_COUNTS, "count": 1}],
    "moved_as_shared": [{**_COUNTS, "other": "actor", "count": n} for n in (1, 2)],
    "moved_to_trained": [{**_COUNTS, "of": "actor_update", "count": n} for n in (1, 2)],
    "frozen": [{**_COUNTS, "updates": 5}, {**_COUNTS, "count": 1, "updates": 5}],
    "frozen_without_gradient": [{**_COUNTS, "updates": 5}, {**_COUNTS, "count": 1, "updates": 5}],
    "zero_gradient": [_COUNTS, {**_COUNTS, "count": 1, "total": 1}],
    "counter": [{"name": "global_step", "before": 2.0, "now": 0.0}],
    "large_update": [{"count": 2, "first": "layers.0.weight", "share": 0.75}],
}
