"""What makes an estimate of the room on disk uncertain."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.en.words import reasons
from mindrlhf_msprobe.report.messages.lists import Joined


def _left_out(what: object, why: object) -> str:
    return f"{what}: {reasons(why)}"


TEXTS: dict[str, Text] = {
    "thinned": (
        "keep_mb {keep} keeps about {steps} whole steps of a rank; of older ones data are removed"
    ),
    "left_out": _left_out,
    "not_recorded": Joined("{what} was not recorded, so it is not in the estimate", ", "),
    "filtered": Joined("what {keys} left out of the recording is not in it", " and "),
    "key_data_in_every_step": (
        "key data are recorded in steps outside the step window, too: {bytes} bytes more for each "
        "of them and each rank"
    ),
    "tokens": "of generation, only tokens {first} to {last} can be in it: no more were recorded",
    "no_parameters": "parameters were not recorded, so they are not in the estimate",
    "no_fingerprints": "without fingerprints equal tensors are not recognised, so each is counted",
    "unknown_dtype": "tensors of dtype {dtype} have no known size and are not in it",
}
