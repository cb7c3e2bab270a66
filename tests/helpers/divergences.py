"""A first divergence, made by hand for the tests of what reports say about it."""

from mindrlhf_msprobe.findings import Cause, Divergence


def first_divergence(**values) -> Divergence:
    """Return one in actor_update at step 2, with other values where they are given."""
    defaults = {
        "step": 2,
        "rank": 0,
        "phase": "actor_update",
        "record": "Cell.head.Dense.forward.0.output.0",
        "entry": "Cell.head.Dense.forward.0",
        "cause": Cause.COMPUTATION,
        "max_abs_err": 1e-3,
        "max_rel_err": 1e-2,
        "explanation": "It differs.",
        "agreed_before": 214,
        "agreed_phases": 3,
        "agreed_steps": 2,
        "last_agreeing": "Cell.head.Dense.forward.0.input.0",
    }
    return Divergence(**{**defaults, **values})
