"""Parameters of the texts of what was lost."""

EXAMPLES = {
    "records": [
        {"rank": 0, "count": 3, "what": "a tensor: MemoryError"},
        {"rank": 1, "count": 1, "what": "the initial weights of actor: RuntimeError"},
    ],
}
