"""Where all ranks of a job end together, so that none leaves the others in a collective.

Ranks meet in files of the run's directory. The one that is to end the training writes the step
after its own as the last one. A rank that began the step later cannot have ended it: where ranks
wait for each other in each step, all of them end there. Where they do not, one may be further:
so each waits at the end of the last step until all have said where they are, and the furthest
decides. If one does not come, it may wait for the others in a step that they have not begun: they
go on by one step, and try again; or it has begun only now, in the place of a process of an earlier
attempt: then the last step concerns nobody, and is published anew. What is decided at the end of a
step stands in one file, which the first creates that knows; so all decide the same.

Where ranks wait at the end of each step anyway, they meet there (`Meeting`), and end in the step
itself. Once they do not meet, the above holds.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.storage.arrays.atomic import write_all

PREFIX = "met."
_FIRST_LOOK, _LOOK = 0.0005, 0.02  # seconds between two looks: more and more
_UNREAD = 60.0  # seconds after which a decision that cannot be read is none
_SIZE = 160  # bytes of what a rank says, which are written at once
_MOST = 1 << 20  # bytes of a file


class Meeting:
    """One rank's part in meeting the others at the end of each step, and ending where one is to.

    Each says in a file of its own which step it has ended and whether the training is to end, and
    waits until all have come as far. If none is to end it goes on, and nothing is written; a rank
    that is further has seen that, too. If one is, one file decides, which the first creates that
    knows: all end after this step, or, where a rank does not come in time, nobody meets any more.
    It is created once in a job, so all decide the same, and what waiting costs is bounded once.

    What processes of an earlier attempt left there concerns nobody: ranks name the processes that
    they see there, and meet where all name the same ones.

    Args:
        directory: which all ranks see.
        size: how many ranks the job has.

    Raises:
        OSError: nothing can be written there.
    """

    def __init__(self, directory: Path, rank: int, size: int) -> None:
        self._directory, self._rank = directory, rank
        self._files = [directory / f"{PREFIX}rank{one}" for one in range(size)]
        self._own_id = secrets.token_hex(8)
        self._job = ""  # the processes that this one sees
        self._met = False  # whether all of them have met before
        self._say(0, ends=False)

    def meet(self, ended: int, patience: float, *, ends: bool) -> bool | None:
        """Wait for the other ranks; return whether all end now, None where they do not meet.

        Args:
            ended: how many steps this rank has ended.
            patience: seconds to wait for the others.
            ends: whether the training is to end.
        """
        try:
            self._say(ended, ends=ends)
            found = self._wait(ended, patience, ends=ends)
        except OSError:
            self._part()
            found = None
        if found is None:
            with suppress(OSError):
                self._say(ended, ends=ends, meets=False)
        return found

    def _wait(self, ended: int, patience: float, *, ends: bool) -> bool | None:
        until = time.monotonic() + patience
        pause = _FIRST_LOOK
        here: dict[int, bool] = {}  # ranks that have ended this step: whether they are to end
        while True:
            if self._job and (decided := read(self._decision)) is not None:
                if decided:
                    return True if decided.get("end") == ended else None
                if time.monotonic() > until + _UNREAD:  # the disk was full, say
                    return None
            elif self._look(ended, here, ends=ends):
                return False
            elif time.monotonic() > until:
                if not self._job:
                    return None
                self._part()
                until = time.monotonic()
            time.sleep(pause)
            pause = min(2 * pause, _LOOK)

    def _look(self, ended: int, here: dict[int, bool], *, ends: bool) -> bool:
        """Look where the others are; return whether all go on. Decides, where that is clear."""
        said = {
            rank: read(path)
            for rank, path in enumerate(self._files)
            if rank not in here or not self._met
        }
        if not self._met:  # say which processes are there, until this was said before
            ids = [one.get("id") if one else None for one in said.values()]
            before, self._job = self._job, self._job if None in ids else digest(ids)
            if before != self._job:
                self._say(ended, ends=ends)
            if None in ids or before != self._job:
                here.clear()
                return False
        for rank, one in said.items():
            if one is None:  # it has left
                here[rank] = False
            elif one.get("meets") is False:
                self._part()
                return False
            elif one.get("job") == self._job and type(one.get("ended")) is int:
                if one["ended"] != one.get("again"):  # it is being written
                    continue
                if one["ended"] > ended:
                    return True
                if one["ended"] == ended:
                    here[rank] = one.get("ends") is True
        if len(here) < len(self._files):
            return False
        self._met = True
        if any(here.values()):
            with suppress(OSError):
                create(self._decision, {"end": ended})
            return False
        return True

    def _part(self) -> None:
        """Decide that ranks meet no more."""
        with suppress(OSError):
            create(self._decision, {"end": None})

    @property
    def _decision(self) -> Path:
        return self._directory / f"{PREFIX}{self._job}"

    def _say(self, ended: int, *, ends: bool, meets: bool = True) -> None:
        """Say where this rank is; `again` stands behind all that it makes whole."""
        said = {"id": self._own_id, "ended": ended, "job": self._job, "ends": ends}
        said |= {"meets": meets, "again": ended}
        write(self._files[self._rank], json.dumps(said).encode().ljust(_SIZE))


def digest(ids: Sequence[Any]) -> str:
    """Return a short text for the numbers of processes."""
    return hashlib.sha1("".join(map(str, ids)).encode()).hexdigest()[:12]


def create(path: Path, content: dict[str, Any]) -> bool:
    """Create a file that there is not; return whether it was this process that did.

    Raises:
        OSError: it cannot be written.
    """
    try:
        write(path, json.dumps(content).encode(), os.O_EXCL)
    except FileExistsError:
        return False
    return True


def write(path: Path, content: bytes, flags: int = 0) -> None:
    """Write the beginning of a file, through no link; waits for no reader of a pipe.

    Raises:
        OSError: it cannot be written.
    """
    flags |= os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    file = os.open(path, flags, 0o666)
    try:
        write_all(file, content)
    finally:
        os.close(file)


def read(path: Path) -> dict[str, Any] | None:
    """Return what a file holds, {} while it is being written; None where there is none."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        found = json.loads(os.read(file, _MOST))
    except (OSError, ValueError, RecursionError):
        return {}
    finally:
        os.close(file)
    return found if isinstance(found, dict) else {}


_DIRECTORY = ".live"
_OF_A_STEP = ("claim.", "after.", PREFIX)
_PATIENCE = 5.0  # seconds for which ranks wait for each other at least
_STEPS_OF_PATIENCE = 3  # or as many of the longest step
_LEAVING = 30.0  # seconds for which a rank that has ended waits for others to end


class CommonEnd:
    """The meeting place of one rank.

    What an earlier attempt at the run left there concerns nobody: each process has a number of its
    own, and a last step is that of the processes it names.

    Args:
        root: the run's directory, which all ranks see.
        size: how many ranks the job has.
        meets: whether they wait for each other at the end of each step.

    Raises:
        OSError: nothing can be written there, or a link leads out of it.
    """

    def __init__(self, root: Path, rank: int, size: int, *, meets: bool = False) -> None:
        self._directory, self._rank, self._size = root / _DIRECTORY, rank, size
        self._own = self._directory / f"rank{rank}"
        self._own_id = secrets.token_hex(8)
        self._published = self._directory / "last_step"
        self._directory.mkdir(parents=True, exist_ok=True)
        if self._directory.is_symlink():
            code = errno.ENOTDIR
            raise NotADirectoryError(code, os.strerror(code), str(self._directory))
        self._say(None)
        # It is there from the beginning: a network file system shows what is written into a file
        # that is opened anew, but may hide for a minute that a file has appeared.
        write(self._published, b"")
        self._seen: tuple[int, int] = (0, 0)
        self._last: int | None = None
        self._ids: list[Any] = []  # of the processes whose last step it is
        self._job = ""
        self._agreed: int | None = None
        self._longest, self._since = 0.0, time.monotonic()
        self._meeting = Meeting(self._directory, rank, size) if meets else None

    @property
    def meets(self) -> bool:
        """Whether ranks still wait for each other at the end of each step."""
        return self._meeting is not None

    def meet(self, ended: int, *, ends: bool) -> bool:
        """Wait for the other ranks at the end of a step; return whether all end now.

        Where one does not come in time, they do not meet any more.

        Args:
            ended: how many steps this rank has ended.
            ends: whether the training is to end.
        """
        assert self._meeting is not None
        self._note_length()
        found = self._meeting.meet(ended, self._patience, ends=ends)
        self._since = time.monotonic()
        if found is None:
            self._meeting = None
        elif found:
            self._agreed = ended
        return bool(found)

    def _note_length(self) -> None:
        now = time.monotonic()
        self._longest, self._since = max(self._longest, now - self._since), now

    @property
    def _patience(self) -> float:
        return max(_PATIENCE, _STEPS_OF_PATIENCE * self._longest)

    def publish(self, ended: int) -> list[int]:
        """Make the step after this one the last of all ranks, unless another rank has made one.

        Args:
            ended: how many steps this rank has ended.

        Returns:
            the ranks that do not take part; then nothing is published.
        """
        if self._is_published():
            return []
        ids = self._ids_by_rank()
        missing = [rank for rank, one in enumerate(ids) if one is None]
        if missing:
            return missing
        if create(self._directory / f"claim.{digest(ids)}", {"by": self._rank}):
            content = {"last": ended + 1, "by": self._rank, "ids": ids}
            write(self._published, json.dumps(content).encode(), os.O_TRUNC)
        return []

    def is_last(self, ended: int) -> bool:
        """Tell, at the end of a step, whether the training ends here; may wait for other ranks.

        Args:
            ended: how many steps this rank has ended.
        """
        self._note_length()
        if not self._is_published():
            return False
        assert self._last is not None
        if ended < self._last or (self._agreed is not None and ended < self._agreed):
            return False
        if self._agreed is None:
            self._agreed = self._decide(ended)
            self._since = time.monotonic()
            if self._agreed is None and self._ids_by_rank() != self._ids:
                self._last = None
        return self._agreed is not None and ended >= self._agreed

    def leave(self, *, ending: bool) -> None:
        """Take part no longer.

        Args:
            ending: the training ends here: wait until the other ranks have come as far, as a
                launcher kills those that still run when the first has ended.
        """
        if ending and self._agreed is not None:
            with suppress(OSError):
                self._say(self._agreed, job=self._job, left=True)
            until = time.monotonic() + _LEAVING
            while time.monotonic() < until:
                others = self._members()
                if all(said is None or said.get("left") for said in others):
                    break
                time.sleep(_LOOK)
        with suppress(OSError):
            (self._directory / f"{PREFIX}rank{self._rank}").unlink(missing_ok=True)
            self._own.unlink(missing_ok=True)
            if not any(path.name.startswith("rank") for path in self._directory.iterdir()):
                for path in [*self._directory.iterdir()]:
                    if path == self._published or path.name.startswith(_OF_A_STEP):
                        path.unlink(missing_ok=True)
                self._directory.rmdir()

    def _is_published(self) -> bool:
        """Return whether a last step is known, of the processes of this attempt."""
        if self._last is not None:
            return True
        try:
            status = os.stat(self._published)
            if not status.st_size or (status.st_size, status.st_mtime_ns) == self._seen:
                return False
        except OSError:
            return False
        content = read(self._published)
        if not content:  # it is being written
            return False
        self._seen = status.st_size, status.st_mtime_ns
        ids, last = content.get("ids"), content.get("last")
        if isinstance(ids, list) and self._own_id in ids and type(last) is int:
            self._last, self._ids, self._job = last, ids, digest(ids)
        return self._last is not None

    def _decide(self, ended: int) -> int | None:
        """Return after how many steps all ranks end; None where they go on by one step first."""
        decision = self._directory / f"after.{self._job}.{ended}"
        self._say(ended, job=self._job)
        until = time.monotonic() + self._patience
        while True:
            others = [said for said in self._members() if said is not None]
            here = [said["ended"] for said in others if said.get("job") == self._job]
            arrived = [step for step in here if type(step) is int]
            with suppress(OSError):
                if len(arrived) == len(others):
                    create(decision, {"end": max(arrived)})
                elif time.monotonic() > until:
                    create(decision, {"end": None})
            found = read(decision)
            if found or time.monotonic() > until + _UNREAD:  # the disk was full, say: all go on
                end = (found or {}).get("end")
                return end if type(end) is int else None
            time.sleep(_LOOK)

    def _say(self, ended: int | None, *, job: str = "", left: bool = False) -> None:
        said = {"id": self._own_id, "ended": ended, "job": job, "left": left}
        write(self._own, json.dumps(said).encode().ljust(128))

    def _members(self) -> list[dict[str, Any] | None]:
        """Return what each rank says of itself; None of one that takes no part."""
        return [read(self._directory / f"rank{rank}") for rank in range(self._size)]

    def _ids_by_rank(self) -> list[Any]:
        return [said.get("id") if said else None for said in self._members()]
