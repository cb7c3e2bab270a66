"""Joins a recorder and the free benchmark of what it records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.phases import Phase
from mindrlhf_msprobe.replay.benchmark.free_benchmark import THRESHOLDS
from mindrlhf_msprobe.storage.writing.benchmark_file import append_rows

if TYPE_CHECKING:
    from mindrlhf_msprobe.capture.recording.recorder import Recorder
    from mindrlhf_msprobe.replay.benchmark.calls import BenchmarkedPhase


def benchmark(recorder: Recorder, config: ProbeConfig) -> None:
    """Have what a recorder records run again on disturbed inputs, and the changes written down."""

    def take(rows: Sequence[Mapping[str, Any]]) -> None:
        append_rows(recorder.root, recorder.rank, rows)

    def observer_of(phase: Phase, _: int) -> BenchmarkedPhase:
        from mindrlhf_msprobe.replay.benchmark.calls import BenchmarkedPhase, Settings

        settings = Settings(
            mode=config.pert_mode,
            handler=config.handler_type,
            stage=config.fuzz_stage,
            runs=config.fuzz_runs,
            thresholds={**THRESHOLDS, **config.fuzz_limits},
            most_times=config.fuzz_ratio,
            held_bytes=config.buffer_mb << 20,
        )
        place = {"step": recorder.step, "phase": phase.name, "rank": recorder.rank}
        return BenchmarkedPhase(settings, place, take)

    if config.changes_training:
        recorder.note_changed_training(task=config.task, pert_mode=config.pert_mode)
    recorder.observe_calls(observer_of)
