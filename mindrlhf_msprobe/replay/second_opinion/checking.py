"""Joins a recorder and the second opinion on what it records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.phases import Phase
from mindrlhf_msprobe.replay.second_opinion.opinion import SecondOpinion, Turns
from mindrlhf_msprobe.storage.writing.opinions_file import OpinionsFile

if TYPE_CHECKING:
    from mindrlhf_msprobe.capture.recording.recorder import Recorder


def check_accuracy(recorder: Recorder, config: ProbeConfig) -> None:
    """Have what a recorder records computed again, and what is thought of it written down.

    Raises:
        OSError: what an earlier attempt left in its file cannot be removed.
    """
    file = OpinionsFile(recorder.root, recorder.rank, recorder.step)
    turns = Turns(config.budget)

    def observer_of(phase: Phase, opening: int) -> SecondOpinion:
        place = {"step": recorder.step, "rank": recorder.rank, "phase": phase.name}
        return SecondOpinion(
            file.append,
            place | {"opening": opening},
            turns,
            dtype=config.precision,
            declared=config.compute_dtype,
        )

    recorder.observe_calls(observer_of)
