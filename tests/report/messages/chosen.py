"""Parameters of the texts of which code chooses what is said (`words.py`), by area."""

_UPDATE = {
    "phase": "actor_update",
    "step": 3,
    "micro_step": 1,
    "updates": 2,
    "parameters": 2,
    "of": 3,
    "unmoved": "B",
    "clipped": False,
    "filtered": True,
    "ranks_unseen": True,
}
_PLAIN = {
    **_UPDATE,
    "updates": 1,
    "of": 1,
    "unmoved": None,
    "clipped": True,
    "filtered": False,
    "ranks_unseen": False,
}
_SYNCHRONISED = {
    "phase": "actor_generate_sequences",
    "trained": "actor_update",
    "parameters": 2,
    "of": 3,
}
_STATES = [
    {"run": run, **_SYNCHRONISED, **state, "other": other, "exact": exact}
    for run, state, other, exact in (
        ("A", {"step": 2}, "current", True),
        ("B", {"step": 2, "micro_step": 1}, {"step": 1, "micro_step": 0}, False),
        ("B", {"initial": True}, {"initial": True}, True),
        ("B", {}, None, True),
    )
]
_WRONG = {
    "call": "Functional.softmax.forward",
    "cell": "layers.0",
    "tensor": "output.0",
    "precision": "float32",
    "error": 2e-4,
    "explained": 1e-7,
}
_AXIS = {"what": "axis", "axis": 1, "size": 8, "count": 3}
_EXACT = {"basis": "elements", "every": True, "within": 0.0}
_ROUNDED = {"basis": "elements", "every": False, "within": 2.4e-7}
_STATISTICS = {"basis": "statistics", "every": True, "within": 2.7e-6}

EXAMPLES = {
    "check_accuracy": {
        "wrong": [
            {**_WRONG, "reason": ""},
            {**_WRONG, "cell": "", "reason": "not_finite"},
            {**_WRONG, "call": "Cell.layers.0.Dense.backward", "reason": "shape"},
        ]
    },
    "coverage": {
        "thinned_steps": [
            {"what": "layers", "ranks": [0], "steps": [[1, 1]]},
            {"what": "tensors", "ranks": [0, 1, 5], "steps": [[n, n + 1] for n in range(0, 60, 5)]},
        ]
    },
    "culprit": {
        "optimizer": [_UPDATE, _PLAIN],
        "optimizer_or_synchronisation": [_UPDATE, _PLAIN],
        "not_synchronised": _STATES,
        "follows_trained": _STATES,
        "written": [
            {"run": "B", "phase": "actor_update", "dtype": "Int32", **since}
            for since in ({}, {"step": 2})
        ],
        "aggregation": [
            {"phase": "actor_update", "key": "loss", "agree": agree, "inputs": inputs, **means}
            for agree, inputs, means in (
                (["log_prob"], False, {}),
                (
                    ["log_prob", "ratio", "kl"],
                    True,
                    {"means": {"A": "tokens", "B": "sequences"}, "factor": 1.25},
                ),
                (["log_prob"], True, {"means": {"A": "sequences", "B": "tokens"}, "factor": None}),
                (["log_prob"], False, {"given": ["loss_inputs"], "unlike": [], "missing": []}),
                *(
                    (["log_prob"], False, {"given": given, "unlike": unlike, "missing": missing})
                    for given, unlike in (
                        (["old_log_prob"], []),
                        (["mask", "ref_logps"], ["advantages"]),
                    )
                    for missing in ([], ["masks"], ["advantages"], ["masks", "advantages"])
                ),
                (
                    ["log_prob"],
                    False,
                    {"given": [], "unlike": ["mask", "advantages"], "missing": []},
                ),
                (["log_prob"], True, {"means": {"A": "tokens", "B": "places"}}),
                (["log_prob"], True, {"factor": 0.25}),
                (["log_prob"], True, {"zero": ["A", "B"]}),
                (
                    ["log_prob"],
                    True,
                    {
                        "possible_means": {"A": ["tokens"], "B": ["sequences", "places"]},
                        "zero": ["B"],
                    },
                ),
                (["log_prob"], True, {"possible_means": {"A": ["places"], "B": ["tokens"]}}),
                (["log_prob"], True, {"zero": ["A"]}),
                *(
                    (["log_prob"], True, {"factor": 18.0, "counts": [["tokens", 18], [of, number]]})
                    for of, number in (("one", 1), ("samples", 4), ("places", 32))
                ),
                (["actor_loss"], False, {"parts": ["actor_loss"]}),
                (
                    ["actor_loss", "kl_loss"],
                    False,
                    {"parts": ["actor_loss", "kl_loss"], "coefficients": {"A": 0.05, "B": 0.9}},
                ),
            )
        ],
    },
    "inside": {
        "axis": [
            {**_AXIS, "spans": spans, "name": name}
            for spans in ([[1, 1], [3, 4]], [[5, 7]], [[i, i] for i in range(0, 16, 2)])
            for name in (None, "sample", "token", "head", "channel", "token_id", "row")
        ],
        "factor": [
            {**_EXACT, "factor": -0.5},
            {**_ROUNDED, "factor": 0.5, "fraction": [1, 2]},
            {**_STATISTICS, "factor": 2.0, "fraction": [2, 1]},
            {**_ROUNDED, "factor": 1.4142135, "root": [2, 1]},
            {**_ROUNDED, "factor": 1.1547005, "root": [4, 3], "ddof": 4},
        ],
        "offset": [{**_EXACT, "offset": 0.5}, {**_STATISTICS, "offset": -1.0}],
    },
}
