"""Parameters of the texts of `preflight`."""

EXAMPLES = {"holds": [{"section": "random_calls", "count": 3}, {"section": "data", "count": 1}]}
