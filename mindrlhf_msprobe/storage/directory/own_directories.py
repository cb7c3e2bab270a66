"""Directories of phases and keys in a run: whether they are still those that were written into.

They may be removed under a running job, by somebody who needs the room, or replaced by others. They
are known by device and inode, which nobody else gets while they are open here.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from mindrlhf_msprobe.common.message import SpokenError, message
from mindrlhf_msprobe.storage import layout

_Identity = tuple[int, int]  # device and inode
_MOST_OPEN = 64  # directories that are held open


class DirectoryLostError(SpokenError):
    """A directory that earlier steps were written into is gone, or is another one.

    Attributes:
        place: it, below the run's directory.
        taken: whether something else is there, into which nothing is written.
        kind: what is counted of it.
    """

    def __init__(self, place: Path, *, taken: bool) -> None:
        how = "replaced" if taken else "removed"
        super().__init__(message(f"fault.place_{how}", place=str(place)))
        self.place = place
        self.taken = taken
        self.kind = message("lost.replaced" if taken else "lost.removed")


#: Called with what was lost, and of which directory.
OnLost = Callable[[DirectoryLostError], None]


class OwnDirectories:
    """Knows the directories above those of steps, by device and inode. Used by one thread.

    Args:
        root: the run's directory.
        on_lost: called once for each directory that is lost.
    """

    def __init__(self, root: Path, rank: int, on_lost: OnLost) -> None:
        self._root = root
        self._rank = rank
        self._on_lost = on_lost
        self._known: dict[Path, _Identity] = {}
        self._open: dict[Path, int] = {}
        self._taken: set[Path] = set()

    def admit(self, directory: Path, step: int) -> None:
        """Return if what is recorded in `step` may be written into `directory`, or it be made.

        One that is gone is made anew. So is one that other ranks of the job made anew before.

        Raises:
            DirectoryLostError: it would lie in a directory that is not this run's any more.
        """
        for relative in self._above(directory):
            if self._look(relative, step):
                raise DirectoryLostError(relative, taken=True)

    def note(self, directory: Path) -> None:
        """Note the directories above one that was made."""
        for relative in self._above(directory):
            if relative in self._known:
                continue
            if len(self._open) < _MOST_OPEN:
                with suppress(OSError):
                    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                    self._open[relative] = os.open(self._root / relative, flags)
            if (found := self._identity(relative)) is not None:
                self._known[relative] = found

    def check(self, step: int) -> None:
        """Look at all directories that are known, and report those that are lost."""
        for relative in sorted(self._known):
            if relative in self._known:  # and not lost with the one around it
                self._look(relative, step)

    def lost(self, directory: Path) -> DirectoryLostError | None:
        """Return what to say of a directory that something else took, or one around it."""
        taken = (relative for relative in self._above(directory) if relative in self._taken)
        return next((DirectoryLostError(relative, taken=True) for relative in taken), None)

    def release(self) -> None:
        """Let go of all of them."""
        for relative in [*self._known, *self._open]:
            self._forget(relative)

    def _look(self, relative: Path, step: int) -> bool:
        """Return whether something else is at a path; one that is gone is forgotten."""
        known, found = self._known.get(relative), self._identity(relative)
        if known is None or known == found:
            self._taken.discard(relative)
            return False
        taken = found is not None and not self._is_made_anew(relative, step)
        if relative not in self._taken:
            self._on_lost(DirectoryLostError(relative, taken=taken))
        for below in [path for path in self._known if relative in path.parents]:
            self._forget(below)
        if taken:
            self._taken.add(relative)
        else:
            self._forget(relative)
        return taken

    def _forget(self, relative: Path) -> None:
        self._known.pop(relative, None)
        self._taken.discard(relative)
        if (file := self._open.pop(relative, None)) is not None:
            os.close(file)

    def _above(self, directory: Path) -> Iterator[Path]:
        """Yield the directories between the run's and the one of a step, the outermost first."""
        relative = Path()
        for part in directory.relative_to(self._root).parts:
            relative = relative / part
            if layout.is_step(relative) and relative.parent != Path(layout.KEY_DATA_DIR):
                return
            yield relative

    def _identity(self, relative: Path) -> _Identity | None:
        try:
            status = os.lstat(self._root / relative)
        except FileNotFoundError:
            return None
        except OSError:  # that it cannot be asked now says nothing; writing there will
            return self._known.get(relative)
        return status.st_dev, status.st_ino

    def _is_made_anew(self, relative: Path, step: int) -> bool:
        """Return whether a directory holds only what other ranks write in this step or later.

        They may be a step behind or ahead.
        """
        path = self._root / relative
        ours = (None, self._rank)
        try:
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                return False
            inner = [*path.iterdir()] if relative == Path(layout.KEY_DATA_DIR) else [path]
            for step_dir in (step_dir for at in inner for step_dir in at.iterdir()):
                number = layout.step_number(step_dir.name)
                if number is None or number < step - 1:
                    return False
                if any(layout.rank_number(rank.name) in ours for rank in step_dir.iterdir()):
                    return False
        except OSError:
            return False
        return True
