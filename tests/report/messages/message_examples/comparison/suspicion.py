"""Why a record that agrees deserves a look all the same."""

EXAMPLES = {
    "non_finite": [{"nan": 2, "inf": 0}, {"nan": 2, "inf": 1}, {"nan": 0, "inf": 0}],
    "of_many": [{"count": 2, "record": "r", "why": ["x", "y"]}],
}
