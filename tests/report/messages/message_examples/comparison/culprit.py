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
        }
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
}
