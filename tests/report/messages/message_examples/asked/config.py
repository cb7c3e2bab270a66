"""Settings that cannot be used."""

EXAMPLES = {
    "unknown_keys": [
        {"items": [["'dumppath'", "'x'"]], "hints": ["1"], "known": "msprobe, dump_path"},
        {
            "items": [["'dumppath'", "'x'"], ["7", "None"]],
            "hints": ["1", ""],
            "known": "msprobe, dump_path",
        },
    ],
    "either": [{"choices": ["statistics", "tensor"]}],
}
