"""What is said of checkpoints."""

_NAMES = [
    {"side": "A", "count": 1, "names": ["w"]},
    {"side": "B", "count": 9, "names": ["w", "x", "y", "z"]},
]

EXAMPLES = {
    "several": [{"path": "d", "names": ["a.ckpt", "b.ckpt"]}],
    "only_pickles": [{"path": "d", "names": ["a.pt"]}],
    "in_another_file": [
        {"names": ["w"], "count": 1, "file": "2.safetensors", "said": "1.safetensors"},
        {"names": ["w", "x"], "count": 5, "file": "2.safetensors", "said": "1.safetensors"},
    ],
    "unlisted": [{"names": ["w"], "count": 1}, {"names": ["w", "x"], "count": 5}],
    "last_step": [{"epoch": 1, "step": 2, "others": n} for n in (0, 1, 2)],
    "of_role": [
        {"role": "actor", "others": [], "step": 3},
        {"role": "actor", "others": ["critic", "reference"], "step": 0},
    ],
    "below": [{"a": "network", "b": ""}, {"a": "network", "b": "model"}],
    "only_in": _NAMES,
    "optimizer_only_in": _NAMES,
    "texts_only_in": _NAMES,
    "transposed": [{"to": ""}, {"to": "BFloat16"}],
    "rank_twice": [{"path": "d", "rank": 0, "names": ["rank0", "rank_0"]}],
    "crc": [{"stored": "0x00000001", "found": "0x00000002"}],
    "files_missing": [{"path": "d", "name": "model", "count": 3, "missing": "2"}],
    "perhaps_cut": [{"side": "A", "count": 1}, {"side": "B", "count": 2}],
    "differing": [{"count": 1}, {"count": 2}],
    "only_in_a": [{"count": 1}, {"count": 2}],
    "only_in_b": [{"count": 1}, {"count": 2}],
    "suspicious": [{"count": 1}, {"count": 2}],
    "headline_diverged": [{"compared": 1, "different": 1}, {"compared": 3, "different": 2}],
}
