"""What the trainer hands over by name: key data, and its configurations."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from mindrlhf_msprobe.capture.graph.outline import UnknownOutline
from mindrlhf_msprobe.capture.recording.keydata import describe_key_data
from mindrlhf_msprobe.capture.recording.messages import (
    log_texts,
)
from mindrlhf_msprobe.capture.settings.configurations import (
    named_configurations,
    reason_of,
)
from mindrlhf_msprobe.capture.words import counted
from mindrlhf_msprobe.common.current import CURRENT
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.log import warn
from mindrlhf_msprobe.phases import nearest_key
from mindrlhf_msprobe.storage.directory.job import DumpPathLostError
from mindrlhf_msprobe.storage.manifest.coverage import (
    KEY_DATA,
)

if TYPE_CHECKING:
    from mindrlhf_msprobe.capture.recording.recorder import Recorder


class Saves:
    """Saves key data and configurations."""

    def __init__(self, recorder: Recorder) -> None:
        self._run = recorder
        self._keys: set[str] = set()
        self.configurations: dict[str, Any] = {}

    def save(self, key: str, value: Any, at: tuple[int | None] | None = None) -> None:
        """Save one value under `key`, as the next micro-step of this step.

        What a recomputed cell saves is saved once: not when it runs again for its gradients.

        Args:
            at: the micro-step, if it is not the next one; (None,) for none at all, beside those
                that have one. What was saved there in this step is replaced.
        """
        self._run.ending.saves()
        if _runs_again():
            return
        if key not in self._keys:
            self._keys.add(key)
            if near := nearest_key(key):
                warn("log.key_unknown", key=key, near=near)
        with self._run.open_step.saving(key, counted=at is None) as (step, next_one):
            clock = self._run.clock_of(step)
            saved_at = clock.now()
            micro_step = next_one if at is None else at[0]
            with counted(self._run.fault, "lost.key_data", key=key):
                if isinstance(value, UnknownOutline):  # saved in a graph that cannot hand it over
                    return self._run.leave_out(KEY_DATA, key, value.reason)
                if self._run.writer.manifest.lost is not None:
                    raise DumpPathLostError(self._run.writer.manifest.lost)
                numbered = self._run.config.numbered_key_data
                described = describe_key_data(
                    key, value, fingerprint=self._run.config.fingerprint, numbered=numbered
                )
                for path, reason in described.unsaved.items():
                    error = TypeError(message("unread.at", path=path, why=reason))
                    self._run.fault(message("lost.key_data", key=key), error)
                seq, phase = next(self._run.sequence), self._run.phases.begun
                self._run.writer.save_key_data(
                    key,
                    step,
                    micro_step,
                    lambda: {"seq": seq, "phase": phase, "data": described.structure},
                    described.arrays,
                    numbered=numbered,
                )
                clock.saved(key, micro_step, saved_at)

    def save_configurations(self, configurations: Any) -> None:
        """Write configurations.json; what was saved under other names before stays in it.

        A value that raises when it is looked at is lost alone: a description stands in its place.
        """
        texts: dict[str, Any] = {}
        with counted(self._run.fault, "lost.configurations"):
            plain = named_configurations(configurations, texts.__setitem__, self._bad_configuration)
            with self._run.lock:
                self.configurations.update(plain)
            log_texts({path: v for path, v in texts.items() if self._run.once("text", path)})
            self._run.writer.save_configurations(self._configurations_now)

    def _bad_configuration(self, path: str, error: Exception) -> None:
        """Count one value of the configurations, of which only a description is written."""
        why = message("unread.at", path=path, why=reason_of(error))
        self._run.fault(message("lost.configurations"), ValueError(why))

    def _configurations_now(self) -> dict[str, Any]:
        """Return all that was saved so far, for the writing thread: no call is older than it."""
        with self._run.lock:
            return dict(self.configurations)

    def note_compiled_without(self) -> None:
        """Write down, and say once, which keys are saved by graphs that hand nothing over."""
        missing = sorted(CURRENT.compiled_without - self._keys)
        why = message("coverage.saved_without_probe")
        note = self._run.writer.manifest.note_left_out
        news = [key for key in missing if note(KEY_DATA, key, why)]
        if news:
            warn("log.saved_without_probe", keys=", ".join(news), why=why)


def _runs_again() -> bool:
    """Return whether a recomputed cell saves what it saved when it ran first."""
    if "mindspore.nn" not in sys.modules:
        return False
    try:
        from mindrlhf_msprobe.capture.recompute import runs_again
    except (ImportError, AttributeError):  # MindSpore has moved it: nothing is known
        return False
    return runs_again()
