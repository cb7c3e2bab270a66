"""Parameters of the texts that say what differs inside a record."""

_AXIS = {"what": "axis", "axis": 1, "size": 8, "count": 3}
_EXACT = {"basis": "elements", "every": True, "within": 0.0}
_ROUNDED = {"basis": "elements", "every": False, "within": 2.4e-7}
_STATISTICS = {"basis": "statistics", "every": True, "within": 2.7e-6}

EXAMPLES = {
    "differs": [
        {"where": [], "prompts": [], "change": "B = A + 1", "elements": 3, "size": 4},
        {"where": ["x", "y"], "prompts": [1, 2], "change": "z", "elements": None, "size": 4},
        {"where": ["x"], "prompts": [1], "change": "", "elements": 1, "size": 4},
    ],
    "element": [
        {**_AXIS, "what": "element", "spans": [[1, 1], [3, 4]]},
        {**_AXIS, "what": "element", "spans": [[0, 0]], "count": 1},
    ],
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
    "rounded": [{"side": side, "dtype": "BFloat16", "every": True} for side in ("A", "B")],
    "order": [
        {"axis": 0, "name": "sample", "size": 8, "turned": 3},
        {"axis": 0, "name": None, "size": 8, "moved": 9, "from": [[0, 1], [1, 0]]},
    ],
    "order_inside": [{"axis": 1, "name": "token", "size": 8}],
    "shifted": [
        {"axis": 1, "name": None, "size": 8, "by": by, "filled": filled, "whole": whole}
        for by, filled, whole in ((-1, 0, True), (2, None, True), (1, None, False))
    ],
    "nearly": [
        {"factor": 0.8660254, "smallest": 0.86602, "largest": 0.86604, "every": every}
        for every in (True, False)
    ],
    "ddof": [
        {"a": 0, "b": 1, "n": 4, "epsilon": epsilon, **root}
        for epsilon in ([], [2e-6, 3e-6], [1e-4, 1e-4])
        for root in ({}, {"root": True})
    ],
    "transposed": [{"size": 16}],
    "rotary_base": [{"a": 10000.0, "b": 500.0}],
    "epsilon": [{"a": 1e-05, "b": 0.001}],
    "elsewhere": [
        {"a": "w3.weight", "b": "mlp.up_proj.weight"},
        {"a": None, "b": "x.weight"},
        {"a": "x.weight", "b": None},
    ],
    "rounding": [{"ulps": 1}, {"ulps": 3}],
}
