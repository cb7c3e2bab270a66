"""Whether a directory is still the one that a process claimed: it may go away under a running job.

A directory is known by its device and inode, which nobody else gets while it is open here.
"""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path

from mindrlhf_msprobe.common.message import SpokenError, message
from mindrlhf_msprobe.storage.directory.job import RankLock


class Loss(str, Enum):
    """How a claimed directory was lost."""

    REMOVED = "removed"
    MOVED = "moved"
    REPLACED = "replaced"
    LOCK_GONE = "lock_gone"
    LOCK_TAKEN = "lock_taken"
    MANIFEST_GONE = "manifest_gone"
    MANIFEST_REPLACED = "manifest_replaced"

    def __str__(self) -> str:
        return self.value


class HoldLostError(SpokenError):
    """The directory, its lock or its manifest is no longer the one of this run.

    Attributes:
        loss: what happened to it.
        kind: what is counted of it.
    """

    kind = message("lost.dump_path")

    def __init__(self, loss: Loss) -> None:
        super().__init__(message("fault.hold_lost", loss=loss.value))
        self.loss = loss


class Hold:
    """A directory that was claimed, and the lock in it; looked at before anything is written.

    Attributes:
        lost: how it was lost; who looks after something in it sets that, too.
    """

    def __init__(self, root: Path, lock: RankLock) -> None:
        self._root = root
        self._lock = lock
        self._directory: int | None = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._claimed = os.fstat(self._directory)
        self.lost: Loss | None = None

    def check(self) -> None:
        """Return if everything is as it was claimed; costs two calls of the system.

        Raises:
            HoldLostError: it is not, or was not when it was looked at before.
        """
        if self.lost is None and self._directory is not None:
            self.lost = self._directory_lost(self._directory)
            if self.lost is None and not self._lock.is_in_place():
                self.lost = Loss.LOCK_TAKEN if self._lock.exists() else Loss.LOCK_GONE
        if self.lost is not None:
            raise HoldLostError(self.lost)

    def retake(self) -> bool:
        """Take a lock whose file was removed once more; False if anything else was lost."""
        if self.lost is not Loss.LOCK_GONE or self._directory is None:
            return False
        if self._directory_lost(self._directory) is not None or self._lock.exists():
            return False
        self._lock.release()
        return self._lock.acquire()

    def release(self) -> None:
        """Let the directory and its lock go."""
        directory, self._directory = self._directory, None
        if directory is not None:
            os.close(directory)
        self._lock.release()

    def _directory_lost(self, directory: int) -> Loss | None:
        try:
            there = os.stat(self._root)
        except (FileNotFoundError, NotADirectoryError):
            return Loss.MOVED if os.fstat(directory).st_nlink else Loss.REMOVED
        except OSError:  # that it cannot be asked now says nothing; writing there will
            return None
        return None if os.path.samestat(there, self._claimed) else Loss.REPLACED
