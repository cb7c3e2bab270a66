"""Parameters of the texts that say why something was not recorded or compared."""

from mindrlhf_msprobe.common.message import message

_WHY = [
    message("coverage.gradients_own_bprop"),
    [message("coverage.dynamic_shape"), message("coverage.dtype", dtype="Complex64")],
    "a reason that a trainer gives",
]

EXAMPLES = {
    "key_follows": [{"key": "rollout_corr"}],
    "graph_mode": [{"why": why} for why in _WHY],
    "left_out": [{"what": "rewards", "why": why} for why in _WHY],
    "operator_replaced": [{"by": "trainer.softmax"}],
    "operator_held": [{"operator": "Mint.relu"}],
    "thinned_steps": [
        {"what": "layers", "ranks": [0], "steps": [[1, 1]]},
        {"what": "tensors", "ranks": [0, 1, 5], "steps": [[n, n + 1] for n in range(0, 60, 5)]},
    ],
}
