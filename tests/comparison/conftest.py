"""One store of recorded trainings for the whole room."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.runs import Fault, Recording, record_training

from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.findings import Comparison


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Path]]:
    """Return a function that records a training once and returns it: for reading alone.

    Of two runs that are alike, one is given another `name`.
    """
    made: dict[Any, tuple[Path, dict[Path, int]]] = {}

    def record(*faults: Fault, name: str = "a", **settings: Any) -> Path:
        key = (faults, name, repr(sorted(settings.items())))
        if key not in made:
            root = tmp_path_factory.mktemp("trained") / name
            record_training(root, faults=faults, **settings)
            made[key] = root, times_of(root)
        return made[key][0]

    yield record
    changed = [root for root, times in made.values() if times_of(root) != times]
    assert not changed, "a test changed a run that others read"


def times_of(root: Path) -> dict[Path, int]:
    """Return when each file of a run was last changed."""
    return {path: path.lstat().st_mtime_ns for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def of_both(tmp_path: Path) -> Callable[..., Comparison]:
    """Return a function that lets another record one step of two runs, and compares them.

    It is given a recording and the run's name, `a` or `b`; `options` are those of the comparison.
    """

    def compare(
        record: Callable[[Recording, str], object],
        options: dict[str, Any] | None = None,
        **settings: Any,
    ) -> Comparison:
        for name in "ab":
            recording = Recording(tmp_path / name, **settings)
            record(recording, name)
            recording.end_step()
            recording.close()
        return compare_runs(tmp_path / "a", tmp_path / "b", **(options or {}))

    return compare
