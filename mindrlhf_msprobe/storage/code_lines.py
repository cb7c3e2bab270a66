"""The lines of call stacks: which of them is the user's, and what stands there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import lru_cache

from mindrlhf_msprobe.common.frozen import dataclass

_FRAME = re.compile(
    r"File (?P<file>.+?), line (?P<line>[0-9]{1,9})(?:, in (?P<function>[^\n]*?))?,?\s*"
    r"(?:\n\s*(?P<text>.*?)\s*)?",
    re.DOTALL,
)
#: Packages that lie between an operator and the code that calls it, where they are installed.
_BETWEEN = re.compile(r"(?:site|dist)-packages[/\\](?:mindspore|msprobe|torch|torch_npu)[/\\]")


@dataclass(frozen=True)
class CodeLine:
    """One frame of a call stack.

    Attributes:
        function: in which it stands; "" if not known.
        text: the line itself; "" if not known.
    """

    file: str
    line: int
    function: str = ""
    text: str = ""

    @property
    def place(self) -> str:
        """The file's own name and the line, e.g. `attention.py:88`."""
        return f"{os.path.basename(self.file.replace(chr(92), '/'))}:{self.line}"

    @property
    def key(self) -> tuple[object, ...]:
        """What it has in common with the same line of an edited file, or of one elsewhere."""
        name = self.place.rpartition(":")[0]
        return name, self.function, self.text or self.line


@lru_cache(maxsize=1 << 16)
def code_line(frame: str) -> CodeLine | None:
    """Return what a frame says, ours or msprobe's; None if it is none."""
    match = _FRAME.fullmatch(frame.strip())
    if match is None:
        return None
    return CodeLine(match["file"], int(match["line"]), match["function"] or "", match["text"] or "")


def is_users(frame: str) -> bool:
    """Return whether a frame is not one of the framework's, or of what records."""
    return not _BETWEEN.search(frame.partition(", line ")[0])


def users_frame(stack: Iterable[str]) -> str | None:
    """Return the innermost frame of a stack that is not the framework's; None of an empty one.

    Our own stacks hold no other. Where there is nothing else, it is the innermost.
    """
    frames = tuple(stack)
    return next(filter(is_users, frames), frames[0] if frames else None)


def users_line(stack: Iterable[str]) -> CodeLine | None:
    """Return the line of the user's code of a stack; None where it is not known."""
    frame = users_frame(stack)
    return None if frame is None else code_line(frame)
