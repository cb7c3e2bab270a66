"""What a trainer hands over by name: key data → a JSON structure and the arrays beside it; and its
configurations.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mindrlhf_msprobe.capture.recording.messages import log_texts
from mindrlhf_msprobe.capture.settings.configurations import named_configurations, reason_of
from mindrlhf_msprobe.capture.tensors.summary import (
    HostTensor,
    is_tensor,
    is_torch_tensor,
    summarise,
    to_host,
    unread,
)
from mindrlhf_msprobe.capture.tensors.tree import TreeDescriber, UnknownOutline, described_leaves
from mindrlhf_msprobe.common.current import CURRENT
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.log import warn
from mindrlhf_msprobe.phases import nearest_key
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.manifest.coverage import KEY_DATA
from mindrlhf_msprobe.storage.writing.directory import DumpPathLostError
from mindrlhf_msprobe.storage.writing.ledger import Counted

if TYPE_CHECKING:
    from mindrlhf_msprobe.capture.recording.recorder import Recorder


@dataclass
class DescribedKeyData:
    """One save, ready to be written.

    Attributes:
        arrays: file name → elements.
        unsaved: path → why a value in it could not be saved.
    """

    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    unsaved: dict[str, Message | None] = field(default_factory=dict)
    _tree: Any = None
    _to_summarise: list[tuple[dict[str, Any], Callable[[], Leaf]]] = field(default_factory=list)

    @property
    def structure(self) -> Any:
        """The JSON structure of described leaves; their statistics are computed when it is read."""
        while self._to_summarise:
            leaf, summarised = self._to_summarise.pop()
            leaf.update(summarised().to_key_data_json())
        return self._tree


def describe_key_data(
    key: str, value: Any, *, fingerprint: bool, numbered: bool = False
) -> DescribedKeyData:
    """Describe tensors (PyTorch's, too), numpy arrays, numbers, texts, None, structures of them.

    A number becomes a 0-d array of int64, float64, bool or complex128; a text becomes its UTF-8
    bytes as uint8, its text kept in the JSON; bfloat16 is stored as float32, exactly. What a
    compiled graph could not hand over is unsaved.

    Args:
        numbered: call the files of a tensor and of a list's elements `<key><i>.npy`.
    """
    described = DescribedKeyData()

    def save(host: HostTensor, path: str, array: np.ndarray, text: str | None = None) -> Any:
        name = layout.file_name(_numbered(key, path) if numbered else path)
        described.arrays[name] = array
        leaf: dict[str, Any] = {}

        def summarised() -> Leaf:
            found = summarise(host, fingerprint=fingerprint)
            return replace(found, data_name=name, value=text)

        described._to_summarise.append((leaf, summarised))
        return leaf

    def tensor(value: Any, path: str) -> Any:
        if isinstance(value, UnknownOutline):
            described.unsaved[path] = value.why
            return Leaf(value.type, why=value.why)
        try:
            host = to_host(value)
        except Exception as error:
            leaf = unread(value, error)
            described.unsaved[path] = leaf.why
            return leaf
        return save(host, path, host.values())

    def text(value: str, path: str) -> Any:
        array = np.frombuffer(value.encode("utf-8", errors="surrogatepass"), np.uint8)
        return save(HostTensor("str", "UInt8", array), path, array, value)

    def to_json(leaf: Any) -> dict[str, Any]:
        return leaf if isinstance(leaf, dict) else leaf.to_key_data_json()

    described._tree = TreeDescriber(_is_array, tensor, text, to_json).describe(value, key)
    for path, leaf in described_leaves(described._tree, key):
        if leaf.get("opaque"):
            described.unsaved[path] = message("coverage.cannot_be_saved", type=leaf["type"])
    return described


def _numbered(key: str, path: str) -> str:
    """Return what a file is called in the place of a path that begins with the key."""
    rest = path[len(key) :]
    number, dot, inside = rest[1:].partition(".")
    if rest and not (number.isascii() and number.isdigit()):
        return path
    return f"{key}{number or 0}{dot}{inside}"


def _is_array(value: Any) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return -(2**63) <= value < 2**63  # numpy holds it without loss
    known = isinstance(value, (bool, float, complex, UnknownOutline))
    return known or is_tensor(value) or is_torch_tensor(value)


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
            with Counted(self._run.fault, "lost.key_data", key=key):
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

        def lost(path: str, error: Exception) -> None:
            why = message("unread.at", path=path, why=reason_of(error))
            self._run.fault(message("lost.configurations"), ValueError(why))

        def saved() -> dict[str, Any]:  # all so far: called by the writing thread
            with self._run.lock:
                return dict(self.configurations)

        with Counted(self._run.fault, "lost.configurations"):
            plain = named_configurations(configurations, texts.__setitem__, lost)
            with self._run.lock:
                self.configurations.update(plain)
            log_texts({path: v for path, v in texts.items() if self._run.once("text", path)})
            self._run.writer.save_configurations(saved)

    def note_compiled_without(self) -> None:
        """Write down, and say once, which keys are saved by graphs that hand nothing over."""
        missing = sorted(CURRENT.compiled_without - self._keys)
        why = message("coverage.saved_without_probe")
        note = self._run.writer.manifest.note_left_out
        news = [key for key in missing if note(KEY_DATA, key, why)]
        if news:
            warn("log.no_key_data", keys=news, why=[why])


def _runs_again() -> bool:
    """Return whether a recomputed cell saves what it saved when it ran first."""
    if "mindspore.nn" not in sys.modules:
        return False
    try:
        from mindrlhf_msprobe.capture.framework.hooks import runs_again
    except (ImportError, AttributeError):  # MindSpore has moved it: nothing is known
        return False
    return runs_again()
