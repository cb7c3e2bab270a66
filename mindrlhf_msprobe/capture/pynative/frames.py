"""Python's frames around a hook: the call stack of an entry, and what a recomputed cell runs again.

Of a call stack the user's and the model's frames count, not the framework's.

MindSpore runs a recomputed cell twice: in the forward pass without gradients, and once more while
the gradients are computed. The second run repeats calls that were recorded already, and it is the
one through which the gradients flow.
"""

from __future__ import annotations

import linecache
import os
import sys
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from mindspore import nn

import mindrlhf_msprobe
from mindrlhf_msprobe.capture.framework.private import FIRST_RUN, ONLY_VALUES, RUN, RUN_AGAIN
from mindrlhf_msprobe.capture.opening.opening import Call
from mindrlhf_msprobe.capture.tensors.summary import fingerprint_of, is_tensor, to_host
from mindrlhf_msprobe.capture.tensors.tree import TreeDescriber, described_leaves
from mindrlhf_msprobe.storage.leaves import Leaf

_PACKAGE = os.path.dirname(os.path.abspath(mindrlhf_msprobe.__file__)) + os.sep
_DEMO = os.path.join(_PACKAGE, "demo") + os.sep
_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_INTERNAL_LIBRARY = ("contextlib.py", "runpy.py", "threading.py")


class CallStacks:
    """Formats the caller's stack; equal places are formatted once.

    Args:
        framework: a file of the framework, whose frames are left out.
        marks: functions to look for on the way.
    """

    def __init__(self, framework: str, marks: frozenset[CodeType] = frozenset()) -> None:
        self._marks = {id(code) for code in marks}  # a code's own hash takes long
        self._framework = os.path.join(os.path.dirname(os.path.abspath(framework)), "")
        self._shown: dict[str, bool] = {}
        self._texts: dict[tuple[str, int, str], str] = {}

    def here(self) -> tuple[tuple[str, ...], FrameType | None]:
        """Return the frames around the hook that asks, and the innermost that runs one of `marks`.

        Frames are texts as msprobe writes them, innermost first.
        """
        frames = []
        marked = None
        known = self._shown.get
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            shown = known(code.co_filename)
            if shown is None:
                shown = self._shown[code.co_filename] = not self._is_internal(code.co_filename)
            if shown:
                place = (code.co_filename, frame.f_lineno, code.co_name)
                text = self._texts.get(place)
                if text is None:
                    file, line, function = place
                    source = linecache.getline(file, line).strip()
                    text = f"File {file}, line {line}, in {function}, \n {source}"
                    self._texts[place] = text
                frames.append(text)
            elif marked is None and id(code) in self._marks:
                marked = frame
            frame = frame.f_back
        return tuple(frames), marked

    def _is_internal(self, file: str) -> bool:
        if file.startswith("<frozen"):
            return True
        path = os.path.abspath(file)
        if path.startswith(self._framework):
            return True
        if path.startswith(_PACKAGE):
            return not path.startswith(_DEMO)
        return path.startswith(_LIBRARY) and os.path.basename(path) in _INTERNAL_LIBRARY


def running_frame() -> FrameType | None:
    """Return the Python frame of MindSpore that runs the cell whose hook asks, if it is known."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name not in (RUN, "__call__"):
        frame = frame.f_back
    return frame


def encloses(outer: FrameType | None, inner: FrameType | None) -> bool:
    """Return whether `outer` is still running around `inner`; where that is not known, it is."""
    if outer is None or inner is None:
        return True
    frame: FrameType | None = inner
    while frame is not None and frame is not outer:
        frame = frame.f_back
    return frame is not None


_CALL: CodeType = nn.Cell.__call__.__code__

#: The functions of MindSpore that run a cell for the first time or once more.
MARKS = frozenset(code for code in (FIRST_RUN, RUN_AGAIN, ONLY_VALUES) if code is not None)


@dataclass
class _Region:
    """The calls inside one run of a recomputed cell, by what ran, in the order they began."""

    calls: dict[Hashable, deque[Call]] = field(default_factory=dict)
    repeated: bool = False


class Repetitions:
    """Remembers what ran inside recomputed cells, to know it again when it is repeated."""

    def __init__(self) -> None:
        self._regions: dict[tuple[int, int], _Region] = {}

    def first(self, frame: FrameType, of: Hashable, call: Call) -> None:
        """Note a call inside the first run.

        Args:
            frame: the innermost of `MARKS`.
            of: the id of the cell, or the name of the operator.
        """
        key = _key(frame, 0)
        region = self._regions.get(key)
        if region is None or region.repeated:
            region = self._regions[key] = _Region()
        region.calls.setdefault(of, deque()).append(call)

    def again(self, frame: FrameType, of: Hashable) -> Call | None:
        """Return the call that is being repeated, or None where no gradients flow through it."""
        if frame.f_code is not RUN_AGAIN:
            return None
        region = self._regions.get(_key(frame, 1))
        if region is None:
            return None
        region.repeated = True
        calls = region.calls.get(of)
        return calls.popleft() if calls else None


def given_again(call: Call, args: Any, kwargs: Any) -> str:
    """Return whether a call that is repeated is given what it was given in the first run.

    Random numbers are drawn again in between, so that it need not be. Elements tell: where those of
    the first call are not recorded, they are not brought to the host either.

    Returns:
        same, other or unknown.
    """
    values = call.line.values if call.line is not None else {}
    given = [values.get("input_args"), values.get("input_kwargs")]
    before = [leaf for leaf in described_leaves(given) if "shape" in leaf]
    if not before or not all("data_name" in leaf and leaf.get("fingerprint") for leaf in before):
        return "unknown"
    now: list[str] = []

    def note(tensor: Any, path: str) -> Leaf:
        now.append(fingerprint_of(to_host(tensor)))
        return Leaf("mindspore.Tensor")

    TreeDescriber(is_tensor, note).describe([args, kwargs], "")
    return "same" if now == [leaf["fingerprint"] for leaf in before] else "other"


def runs_again() -> bool:
    """Return whether the caller is called by a cell that MindSpore runs once more.

    What is called while the gradients of such a cell are computed, a hook, runs for the first time.
    """
    in_a_cell = False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code is _CALL:
            in_a_cell = True
        elif code is ONLY_VALUES or (in_a_cell and code is RUN_AGAIN):
            return True
        frame = frame.f_back
    return False


def _key(frame: FrameType, popped: int) -> tuple[int, int]:
    """Return which recomputed cell a frame runs, and which of its runs that are still due.

    Such a cell keeps the arguments of its runs on a stack, pushed before the first run and popped
    before the repetition.
    """
    cell = frame.f_locals["self"]
    return id(cell), len(cell.args) + popped
