"""Parameters of the texts that say what is to blame: the details of culprits."""

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

EXAMPLES = {
    "earlier_update": [
        {
            "key": "log_prob",
            "step": 0,
            "phase": "actor_update",
            "micro_step": 0,
            "number": 1,
            "record": ["actor_update", "actor_compute_log_prob"],
            **more,
        }
        for more in ({}, {"batch_agrees": True})
    ],
    "optimizer": [_UPDATE, _PLAIN],
    "optimizer_or_synchronisation": [_UPDATE, _PLAIN],
    "update_close": [_UPDATE, _PLAIN],
    "gradients_not_recorded": [{**_UPDATE, "weights": True}, {**_PLAIN, "weights": False}],
    "before_optimizer": [{"phase": "actor_update", "gradients": 4, "backward": 1}],
    "not_synchronised": _STATES,
    "follows_trained": _STATES,
    "synchronisation": [{"run": run, **_SYNCHRONISED} for run in (None, "A", "B")],
    "not_moved": [
        {
            "run": run,
            "phase": "actor_generate_sequences",
            "trained": trained,
            "step": 1,
            "parameters": 2,
            "of": 3,
            "exact": exact,
            "trained_agrees": agrees,
        }
        for run, trained, exact, agrees in (
            ("A", None, True, False),
            ("B", "actor_update", False, True),
            ("B", "actor_update", True, False),
        )
    ],
    "changed_between": [
        {
            "run": "A",
            "phase": "actor_update",
            "since": "actor_compute_log_prob",
            "parameters": 1,
            "of": 3,
            **copied,
        }
        for copied in ({}, {"copied": True})
    ],
    "sampling": [
        {"phase": "actor_generate_sequences", "token": 4, "last": last, "prompt": prompt}
        for last, prompt in ((True, False), (False, True), (False, False))
    ],
    "sampling_or_logits": [
        {"phase": "actor_generate_sequences", "token": 4, "last": last, "prompt": False}
        for last in (True, False)
    ],
    "loss": [{"phase": "actor_update", "agree": 7}],
    "moved": [
        {"run": "B", "phase": "reference_compute_log_prob", "parameters": 1, "of": of}
        for of in (1, 3)
    ],
    "written": [
        {"run": "B", "phase": "actor_update", "dtype": "Int32", **since}
        for since in ({}, {"step": 2})
    ],
    "moved_since": [
        {
            "run": "A",
            "phase": "reference_compute_log_prob",
            "parameters": 1,
            "of": of,
            "seen": 4,
            "step": 1,
            "record": ["reference_compute_log_prob"],
        }
        for of in (1, 3)
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
            (["log_prob"], False, {"given": [], "unlike": ["mask", "advantages"], "missing": []}),
            (["log_prob"], True, {"means": {"A": "tokens", "B": "places"}}),
            (["log_prob"], True, {"factor": 0.25}),
            (["log_prob"], True, {"zero": ["A", "B"]}),
            (
                ["log_prob"],
                True,
                {"possible_means": {"A": ["tokens"], "B": ["sequences", "places"]}, "zero": ["B"]},
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
}
