"""Parameters of the texts of a comparison's answer."""

from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.findings import Cause

_SCOPE = "3 steps, 1 rank"
_RUNS = [(1, "", 1), (1926, "; it holds NaN", 40)]
_EARLIER = {
    "path": "out",
    "status": "diverged",
    "named": "Cell.root.Net.forward.0",
    "step": 1,
    "phase": "actor_update",
}
_CHOSEN = {
    "steps": "2-5",
    "keys": ["loss", "a=b"],
    "include": ["mlp"],
    "exclude": ["x", "y"],
    "common": True,
    "first_only": True,
}

EXAMPLES = {
    "operator": [
        {
            **{"entry": f"Mint.add.3.{direction}", "operator": "Mint.add", "cell": cell},
            **{"backward": direction == "backward", "line": line},
        }
        for direction, cell, line in (
            ("forward", "layers.0", "net.py:8"),
            ("backward", "", "loss.py:12"),
            ("forward", None, ""),
        )
    ],
    "scope": [{"steps": 1, "ranks": 1, "phases": 0}, {"steps": 3, "ranks": 2, "phases": 6}],
    "identical": [{"compared": n, "scope": _SCOPE, "non_finite": more} for n, more, _ in _RUNS],
    "within_tolerance": [
        {"compared": n, "close": close, "scope": _SCOPE, "non_finite": more}
        for n, more, close in _RUNS
    ],
    "unread": [{"compared": n, "scope": _SCOPE} for n, _, _ in _RUNS],
    "non_finite": [
        {"records": n, "several": n > 1, "step": 1, "phase": phase, "rank": 0, "record": "loss"}
        for n, phase in ((1, None), (311, "actor_update"))
    ],
    "suspicious": [
        {
            **{"records": n, "step": 1, "phase": phase, "rank": 0, "record": "loss"},
            **{"micro_step": micro_step, "what": message("suspicion.non_finite", nan=n, inf=0)},
        }
        for n, phase, micro_step in ((1, None, 2), (311, "actor_update", 0))
    ],
    "cause": [
        {"cause": cause, "explanation": "loss differs."}
        for cause in (*(str(cause) for cause in Cause), "of_a_newer_version")
    ],
    "max_abs": [{"absolute": 3.1e-3, "relative": relative} for relative in (None, 2.4e-2)],
    "agreed_before": [{"agreed": "all of step 0.", "last": last} for last in (None, "loss")],
    "look_closer": [
        {"unless": unless, "one_run": one, "size": " (about 3 MB)"}
        for unless in ("", "meant", "unexplained")
        for one in (True, False)
    ],
    "chain": [{"where": "step 1", "key": "", "chain": "loss → kl_loss"}],
    "chain_key": [
        {"absolute": a, "relative": b, "zero": c}
        for a in (True, False)
        for b in (True, False)
        for c in (True, False)
    ],
    "records_differ": [{"different": 1, "compared": 3}],
    "from_zero": [{}],
    "to_zero": [{}],
    "not_finite": [
        {"nan_a": 0, "inf_a": a, "nan_b": 8, "inf_b": 1, "elements": n}
        for a, n in ((0, 12), (2, 1), (1, None))
    ],
    "gap": [
        {"records": n, "only_in": run, "reason": "not configured"}
        for n, run in ((1, "A"), (2, "B"), (3, "both"))
    ],
    "rule_use": [{"rule": "rtol 0.001", "records": n, "passed": 1} for n in (1, 12)],
    "summary": [
        {"scope": _SCOPE, "compared": 5, "seconds": None, "counts": []},
        {"scope": _SCOPE, "compared": 5, "seconds": 0.9, "counts": ["4 identical", "1 different"]},
    ],
    "place": [
        {"step": 1, "phase": phase, "rank": 0, "micro_step": micro_step, "call": call}
        for phase, micro_step, call in ((None, 2, None), ("actor_update", None, 2))
    ]
    + [{"step": 1, "phase": "actor_update", "rank": 0, "micro_step": None, "call": None}],
    "parted": [
        {
            "ranks": ranks,
            "first": first,
            "step": 1,
            "phase": phase,
            "micro_step": micro_step,
            "record": "loss",
        }
        for ranks, first, phase, micro_step in (
            ([0], True, None, 2),
            ([1, 2, 5], False, "actor_update", None),
        )
    ],
    "agreeing_ranks": [{"ranks": [0]}, {"ranks": [1, 2, 5]}],
    "stopped": [
        {"state": state, "step": 3, "phase": phase, "ranks": ranks, "error": error}
        for state, phase, ranks, error in (
            ("running", None, [0], ""),
            ("killed", "actor_update", [0, 1], ""),
            ("interrupted", None, [3], ""),
            ("failed", "actor_update", [0], "ValueError: loss"),
        )
    ],
    "more_stops": [{"number": 1}, {"number": 3}],
    "before": [
        {"records": records, "phases": phases, "steps": steps, "step": step}
        for records, phases, steps, step in (
            (0, 0, 1, 1),
            (1, 0, 0, 0),
            (214, 3, 2, 2),
            (2, 1, 3, 7),
        )
    ],
    "earlier": [
        {**_EARLIER, "relation": relation, "all_cells": agreed > 0, "agreed": agreed}
        for relation in ("same", "inside", "before", "elsewhere", "new", "not_seen", "agreed")
        for agreed in (0, 12)
    ],
    "compared_only": [_CHOSEN, {**dict.fromkeys(_CHOSEN, ()), "steps": "3"}],
    "left_out": [
        {"steps": [0, 1], "cells": True, "keys": [f"k{i}" for i in range(12)], "steps_after": [4]},
        {"steps": [], "cells": True, "keys": [], "steps_after": []},
    ],
    "size_of_next": [
        {"size": "3 MB", "one_run": one, "estimated": not one} for one in (True, False)
    ],
    "weights": [
        {"compared": n, "different": different, "only_in_a": a, "only_in_b": b}
        for n, different, a, b in ((3, 0, 0, 0), (0, 0, 0, 0), (3, 1, 2, 1))
    ],
    "difference": [
        {"section": "initial_weights", "name": name, "a": "1", "b": "2"} for name in ("", "lr")
    ],
    "stopped_run": [{"run": run, "stopped": "stopped in step 1"} for run in "AB"],
}
