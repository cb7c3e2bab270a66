"""The rollouts that hyper-parallel's RL trainer writes where HYPER_RL_ROLLOUT_ARTIFACT_DIR is set.

One file for each version of the policy and each rank, `<strategy>-policy<V>-rank<R>.json`, with
`mismatch-` before the name where it differs from the rollout of another way to hand over the
weights, which the trainer was given as an oracle. It is read as the key data of step V.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.phases import POLICY_VERSIONS
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays.npy import dtype_name
from mindrlhf_msprobe.storage.arrays.rollout_json import ORACLE, ROWS, read_rollout
from mindrlhf_msprobe.storage.foreign.dialect import HYPER_RL, Format, OnProblem
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.place import KeyPlace
from mindrlhf_msprobe.storage.reading.problems import Problem
from mindrlhf_msprobe.storage.records import Record

_FILE = re.compile(r"(mismatch-)?[^/]{1,100}?-policy([0-9]{1,12})-rank([0-9]{1,12})\.json")
_KEYS = (*ROWS, *POLICY_VERSIONS)


class HyperRLRollouts(Format):
    """`show`, `check`, `trend` and `compare` take a directory of this form."""

    dialect = HYPER_RL

    def __init__(self) -> None:
        self._files: dict[tuple[int, int], Path] = {}  # of each policy version and rank

    def places(self, root: Path, problem: OnProblem) -> Iterator[tuple[KeyPlace, Path]]:
        """Yield the places of the files in a directory, without reading them."""
        with suppress(OSError):  # whoever opens the directory says why
            for path in sorted(root.iterdir()):
                if (match := _FILE.fullmatch(path.name)) is None:
                    continue
                place = int(match[2]), int(match[3])
                if place in self._files:
                    why = message("unread.same_place")
                    problem(Problem(path, why, None, *place, key_data=True))
                self._files.setdefault(place, path)
        for place, path in sorted(self._files.items()):
            differs = _FILE.fullmatch(path.name)
            more = (ORACLE,) if differs is not None and differs[1] else ()
            yield from ((KeyPlace(key, *place, 0), root) for key in (*_KEYS, *more))

    def key_data(self, root: Path, directory: Path, at: KeyPlace) -> tuple[Record, ...]:
        """Return what a file holds under a key, or why it cannot be read."""
        path = self._files[at.step, at.rank]
        if not path.exists():  # it was removed since
            return ()
        key, tool = at.key, HYPER_RL.name
        try:
            rollout = read_rollout(root, path)
            if rollout.place != (at.step, at.rank):
                raise layout.UnreadError.saying("unread.other_rollout", held=str(rollout.place))
            if key not in ROWS and key not in rollout.values:
                raise layout.UnreadError.saying("unread.no_value_of", name=key)
        except (OSError, ValueError) as error:
            why = message("unread.of_file", file=path.name, why=layout.why_unread(error))
            return (Record(key, "data", "", Leaf("unreadable", why=why)),)
        if key in ROWS:
            array = rollout.rows[key]
            leaf = Leaf("numpy.ndarray", dtype_name(array.dtype), array.shape, dialect=tool)
            return (Record(key, "data", "", leaf, location=f"{path}#{key}"),)
        value = rollout.values[key]
        leaf = Leaf(type(value).__name__, value=value, dialect=tool)
        return (Record(key, "data", "", leaf),)
