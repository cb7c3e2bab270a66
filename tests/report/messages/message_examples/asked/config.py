"""Settings that cannot be used."""

EXAMPLES = {
    "unknown_keys": [
        {"items": [["'dumppath'", "'x'", "1"]], "known": "msprobe, dump_path"},
        {"items": [["'dumppath'", "'x'", "1"], ["7", "None", ""]], "known": "msprobe, dump_path"},
    ],
    "either": [{"choices": ["statistics", "tensor"]}],
}
