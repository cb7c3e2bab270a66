"""Parameters of `unread`, as they occur."""

EXAMPLES = {
    "no_dump_files": [
        {"count": 1, "files": ["x.bin"]},
        {"count": 9, "files": ["x.bin", "y.bin"]},
    ],
    "no_columns": [{"columns": ["IO", "Slot"]}],
    "damaged_lines": [
        {"count": 1},
        {"count": 1, "lines": [[4, "Cell.layers.0.Block.forward.0"]]},
        {"count": 30, "lines": [[4, "Cell.layers.0.Block.forward.0"], [5, ""]]},
    ],
}
