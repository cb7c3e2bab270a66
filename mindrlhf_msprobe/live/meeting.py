"""All ranks meet at the end of each step, and end in the one in which one of them is to end.

Each says in a file of its own which step it has ended and whether the training is to end, and waits
until all have come as far. If none is to end it goes on, and nothing is written; a rank that is
further has seen that, too. Otherwise one file is decisive, which the first creates that knows: all
end after this step, or, where a rank does not come in time, nobody meets any more. It is created
once in a job, so all decide alike, and what waiting costs is bounded once.
"""

from __future__ import annotations

import json
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.live.shared_files import create, digest, read, write

PREFIX = "met."
_FIRST_LOOK, _LOOK = 0.0005, 0.02  # seconds between two looks: more and more
_UNREAD = 60.0  # seconds after which a decision that cannot be read is none
_SIZE = 160  # bytes of what a rank says, which are written at once


class Meeting:
    """One rank's part in it.

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
        if not self._met and not self._sees_all(said, ended, ends=ends):
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

    def _sees_all(self, said: dict[int, Any], ended: int, *, ends: bool) -> bool:
        """Say which processes are there; return whether this was said before."""
        ids = [one.get("id") if one else None for one in said.values()]
        if None in ids:
            return False
        before, self._job = self._job, digest(ids)
        if before != self._job:
            self._say(ended, ends=ends)
        return before == self._job

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
