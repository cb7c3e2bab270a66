"""What is computed again while training, as the configuration says: for the probe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.capture.opening.observer import CallObserver
from mindrlhf_msprobe.capture.recording.recorder import Recorder
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.replay.benchmark.free_benchmark import THRESHOLDS
from mindrlhf_msprobe.storage.writing.benchmark_file import append_rows


def observed_by(config: ProbeConfig, recorder: Recorder) -> Callable[[str, Any], CallObserver]:
    """Return what makes the observer of an opening of a phase, of its name and its network."""

    def observer(phase: str, network: Any) -> CallObserver:
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
        place = {"step": recorder.step, "phase": phase, "rank": recorder.rank}
        listens = not config.records_operators
        return BenchmarkedPhase(settings, network, place, take, listens=listens)

    def take(rows: Sequence[Mapping[str, Any]]) -> None:
        append_rows(recorder.root, recorder.rank, rows)

    if config.changes_training:
        recorder.note_changed_training(task=config.task, pert_mode=config.pert_mode)
    return observer
