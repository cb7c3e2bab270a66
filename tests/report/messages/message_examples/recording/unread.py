"""Parameters of `unread`, as they occur."""

EXAMPLES = {
    "damaged_lines": [
        {"count": 1},  # of an older version
        {"count": 1, "lines": [[4, "Cell.layers.0.Block.forward.0"]]},
        {"count": 30, "lines": [[4, "Cell.layers.0.Block.forward.0"], [5, ""]]},
    ],
}
