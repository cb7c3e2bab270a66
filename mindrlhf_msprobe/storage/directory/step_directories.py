"""A rank's directories of steps in a run: made while it is recorded, looked at when a step ends.

They may be removed under a running job, by somebody who needs the room, or replaced by others.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from pathlib import Path

from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.directory.removal import recorded_file

_HEAD = 4096  # bytes of a file by which it is known, beside its size
_ATTEMPTS = 100  # at making a directory, while other ranks remove those around it that are empty

#: A file that was recorded, its size, and how it begins.
_Written = tuple[Path, int, bytes]


class StepDirectories:
    """The directories that one rank's steps are recorded into. Used by one thread.

    Each is known by a file that was recorded into it: of open steps all are known, of every phase
    and key the last one.

    Attributes:
        lost_in: directory of a phase or a key → the step in which what it held was lost.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._made: dict[Path, _Written | None] = {}
        self._last: dict[Path, _Written] = {}  # directory of a phase or a key → file
        self.lost_in: dict[Path, int] = {}

    def make(self, directory: Path) -> None:
        """Make the directory of a phase or a key in a step, or return if it was made and is there.

        Files of others in it stay.

        Raises:
            OSError: it cannot be made, was removed or replaced, or something was recorded there, or
                it lies behind a symbolic link in the run's directory: that is somebody else's.
        """
        if directory in self._made:
            if not self.is_there(directory):
                why = message("fault.removed_before_end", directory=str(directory))
                raise FileNotFoundError(why)
            return
        if (link := self._link_in(directory)) is not None:
            raise OSError(errno.ELOOP, message("fault.symbolic_link"), str(link))
        if recorded_file(self._root, directory) is not None:
            raise FileExistsError(errno.EEXIST, message("fault.of_others"), str(directory))
        for attempt in range(_ATTEMPTS):
            try:
                directory.mkdir(parents=True, exist_ok=True)
                break
            except (FileNotFoundError, FileExistsError):  # a rank that begins removes empty ones
                if attempt == _ATTEMPTS - 1 or (directory.exists() and not directory.is_dir()):
                    raise
        self._made[directory] = None

    def note(self, directory: Path, file: Path) -> None:
        """Know the directory of an open step by a file that was recorded into it.

        Where the file is gone already, the end of the step says so.
        """
        with suppress(OSError, layout.UnreadError):
            self._made[directory] = self._read(file)

    def is_there(self, directory: Path) -> bool:
        """Return whether what was noted of an open step's directory is where it was."""
        return self._is_unchanged(self._made.get(directory))

    def is_own(self, directory: Path) -> bool:
        """Return whether a directory of an earlier step lies where this run was recorded into."""
        place, step = directory.parent.parent, layout.step_number(directory.parent.name) or 0
        return step >= self.lost_in.get(place, 0) and self._is_unchanged(self._last.get(place))

    def end_step(self, step: int) -> dict[Path, bool]:
        """Look at what was recorded last, and know it by what this step recorded from now on.

        Returns:
            the directories of phases and keys where it is gone, whether removed on purpose or not;
            and whether something else stands there.
        """
        last = self._last.items()
        gone = {place: known[0] for place, known in last if not self._is_unchanged(known)}
        for place in gone:
            del self._last[place]
        for made in [*self._made]:
            if (layout.step_number(made.parent.name) or 0) <= step:
                known = self._made.pop(made)
                if known is not None and self._is_unchanged(known):
                    self._last[made.parent.parent] = known
        return {place: os.path.lexists(file) for place, file in gone.items()}

    def _is_unchanged(self, known: _Written | None) -> bool:
        if known is None:
            return True
        try:
            return self._link_in(known[0]) is None and self._read(known[0]) == known
        except (FileNotFoundError, NotADirectoryError, layout.UnreadError):
            return False
        except OSError:  # that it cannot be asked now says nothing; writing there will
            return True

    def _read(self, file: Path) -> _Written:
        with layout.open_inside(self._root, file, sys.maxsize) as opened:
            return file, os.fstat(opened.fileno()).st_size, opened.read(_HEAD)

    def _link_in(self, path: Path) -> Path | None:
        """Return a symbolic link on the way from the run's directory to a path."""
        ways = [self._root / way for way in path.relative_to(self._root).parents]
        return next((way for way in (*ways[:-1], path) if way.is_symlink()), None)
