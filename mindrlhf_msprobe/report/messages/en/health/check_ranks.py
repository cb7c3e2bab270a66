"""What the checks of ranks say, in English."""

from __future__ import annotations

from mindrlhf_msprobe.common.numbers import few_numbers
from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.en.words import counted


def _of(ranks: list[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {few_numbers(ranks)}"


def _calls(lacking: bool, rank: int, other: int, cells: int, count: int, usual: int) -> str:
    what = "recorded less" if lacking else "ran cells another number of times"
    return (
        f"rank {rank} {what} than rank {other}: {counted(cells, 'cell')}, "
        f"the first {counted(count, 'time')} and not {usual}"
    )


def _no_phase(ranks: list[int], phase: str) -> str:
    return f"{_of(ranks)} recorded nothing of {phase}, others did"


def _missing(ranks: list[int], of: int) -> str:
    return f"{_of(ranks)} of the job recorded nothing here; {counted(of, 'rank')} did"


def _setting(section: str, name: str, ranks: list[int]) -> str:
    return f"{_of(ranks)} ran with another {name} ({section}) than the others"


def _parted(rank: int, others: list[int], parameters: int, of: int) -> str:
    return (
        f"{counted(parameters, 'parameter')} of {of} on rank {rank} differ from those of "
        f"{_of(others)}; in earlier steps they agreed: replicas have parted"
    )


def _other_weights(rank: int, others: list[int], parameters: int, of: int) -> str:
    return (
        f"{counted(parameters, 'parameter')} of {of} on rank {rank} are other ones than those of "
        f"{_of(others)} from the first step on, with data of its own: replicas that never agreed"
    )


def _shapes(rank: int, records: int) -> str:
    return f"{counted(records, 'record')} on rank {rank} have another shape or dtype in every step"


TEXTS: dict[str, Text] = {
    "calls": _calls,
    "no_phase": _no_phase,
    "no_key": "rank {rank} did not save {key}, all others did",
    "missing": _missing,
    "setting": _setting,
    "parted": _parted,
    "other_weights": _other_weights,
    "shapes": _shapes,
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
}
