"""Joins a recorder and the second opinion on what it records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.phases import Phase
from mindrlhf_msprobe.replay.second_opinion.opinion import SecondOpinion, Turns
from mindrlhf_msprobe.storage.reading.opinions import opinion_lines

if TYPE_CHECKING:
    from mindrlhf_msprobe.capture.recording.recorder import Recorder


def check_accuracy(recorder: Recorder, config: ProbeConfig) -> None:
    """Have what a recorder records computed again, and what is thought of it written down."""
    file = opinion_lines(recorder.root, recorder.rank)
    turns = Turns(config.budget)

    def write(opinion: Mapping[str, Any]) -> None:
        file.append([opinion])

    def observer_of(phase: Phase, opening: int) -> SecondOpinion:
        place = {"step": recorder.step, "rank": recorder.rank, "phase": phase.name}
        return SecondOpinion(
            write,
            place | {"opening": opening},
            turns,
            dtype=config.precision,
            declared=config.compute_dtype,
        )

    recorder.observe_calls(observer_of)
