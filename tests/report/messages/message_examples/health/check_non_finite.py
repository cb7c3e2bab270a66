"""Parameters of what the check for NaN and infinity says."""

_HELD = {"nan": 2, "inf": 0, "size": 48}
_BOTH = {"nan": 2, "inf": 1, "size": 1}
_CARRIED = {"origin": 1, "step": 3}

EXAMPLES = {
    "born": [{"backward": False, **_HELD}, {"backward": True, **_BOTH}],
    "born_of_operator": [
        {"backward": backward, "operator": "Mint.log", "cell": cell, "line": line, **_HELD}
        for backward, cell, line in (
            (False, "layers.0", "net.py:8"),
            (True, "", "loss.py:3"),
            (False, None, ""),
        )
    ],
    "in_container_operator": [{"container": "Cell.root.Network.forward.0", **_HELD}],
    "came_in_operator": [{"phase": "actor_update", **_HELD}],
    "in_container": [{"container": "Cell.root.Network.forward.0", **_HELD}],
    "came_in": [{"phase": "actor_update", **_HELD}],
    "parameter": [{"gradients_finite": True, **_HELD}, {"gradients_finite": False, **_HELD}],
    "parameter_of_ranks": [{"others": 3, **_HELD}],
    "parameter_after_gap": [{"before": 3, **_HELD}],
    "optimizer_state": [{"gradients_finite": True, **_HELD}, {"gradients_finite": False, **_BOTH}],
    "parameter_at_first": [_HELD],
    "gradient": [_HELD],
    "data": [{"key": "log_prob", **_BOTH}],
    "zero_deviation": [{"rewards": 1.0, **_HELD}],
    "carried": [
        {"ranks": [0], "kind": "output", "collective": "AllReduce", **_CARRIED},
        *(
            {"ranks": [0, 2], "kind": kind, "collective": "", **_CARRIED}
            for kind in ("gradient", "parameter", "input")
        ),
    ],
    "retried": [{"steps": 1}, {"steps": 3}],
    "stuck": [{"steps": 9}],
}
