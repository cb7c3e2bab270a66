"""The call stack of an entry: the user's and the model's frames, not the framework's."""

from __future__ import annotations

import linecache
import os
import sys
from types import CodeType, FrameType

import mindrlhf_msprobe
from mindrlhf_msprobe.capture.framework.private import RUN

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
