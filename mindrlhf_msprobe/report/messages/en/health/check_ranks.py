"""What the checks of ranks say, in English."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindrlhf_msprobe.common.text.numbers import few_numbers
from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.choices.check_ranks import CHOICES
from mindrlhf_msprobe.report.messages.chosen import chosen
from mindrlhf_msprobe.report.messages.en.words import count


def _ranks(name: str) -> Text:
    def text(**params: Any) -> str:
        ranks = params[name]
        return f"{'rank' if len(ranks) == 1 else 'ranks'} {few_numbers(ranks)}"

    return text


_PIECES: Mapping[str, Text] = {
    "those_ranks": _ranks("ranks"),
    "other_ranks": _ranks("others"),
    "n_cells": count("cells", "cell"),
    "n_times": count("count", "time"),
    "n_ranks": count("of", "rank"),
    "n_parameters": count("parameters", "parameter"),
    "n_records": count("records", "record"),
    "recorded_less": "recorded less",
    "called_otherwise": "ran cells another number of times",
}

TEXTS: Mapping[str, Any] = chosen(
    CHOICES,
    _PIECES,
    {
        "calls": (
            "rank {rank} {how_called} than rank {other}: {n_cells}, the first {n_times} and not "
            "{usual}"
        ),
        "no_phase": "{those_ranks} recorded nothing of {phase}, others did",
        "no_key": "rank {rank} did not save {key}, all others did",
        "missing": "{those_ranks} of the job recorded nothing here; {n_ranks} did",
        "setting": "{those_ranks} ran with another {name} ({section}) than the others",
        "parted": (
            "{n_parameters} of {of} on rank {rank} differ from those of {other_ranks}; in earlier "
            "steps they agreed: replicas have parted"
        ),
        "other_weights": (
            "{n_parameters} of {of} on rank {rank} are other ones than those of {other_ranks} from "
            "the first step on, with data of its own: replicas that never agreed"
        ),
        "shapes": "{n_records} on rank {rank} have another shape or dtype in every step",
        "no_manifest": "no run.json says what each rank ran with",
        "shards": (
            "the two ranks of {phase} hold other parameters and were given the same data: they are "
            "taken for shards of one network"
        ),
        "cause_branch": "a branch that depends on the data of the rank",
        "cause_batches": "batches or micro-batches of another size",
        "cause_recording": "another msprobe_config on that rank, or a rank that fell behind",
        "cause_configuration": "another configuration of the network on that rank",
        "cause_reduction": "gradients that are not reduced over the ranks, or not all of them",
        "cause_nondeterministic": "an update that is not deterministic, or differs by rank",
        "cause_seed": "another seed when that rank's network was initialised",
        "cause_checkpoint": "another checkpoint, or one that rank did not load",
        "cause_launch": "the ranks were not launched alike: environment, image, script",
    },
)
