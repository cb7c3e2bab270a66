"""SingleSave and SingleComparator: scripts written for msprobe's keep running.

Files and tables are those of this package, which msprobe's tools read too.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from mindrlhf_msprobe import log
from mindrlhf_msprobe.errors import RunError, UsageError
from mindrlhf_msprobe.log import warn
from mindrlhf_msprobe.storage import layout

if TYPE_CHECKING:
    from mindrlhf_msprobe.compat.shared import SharedProbe
    from mindrlhf_msprobe.probe import Probe

_PathLike = str | os.PathLike[str]

_FRAMEWORKS = ("pytorch", "mindspore")
_MOST_PROCESSES = 128
_LARGEST_MICRO_STEP = 10**9


class SingleSave:
    """Saves key data by name: `SingleSave(path)` once, then everything through the class.

        SingleSave("./dump_path")
        SingleSave.save({"response": response})
        SingleSave.step()

    A process has one current SingleSave: the one that was made last. Made again with the same
    path, it is the same one and counts on.

    Args:
        dump_path: where the run is recorded. A directory that holds a run already is continued
            with the step behind the last one, with a warning; one into which this process records
            already, by a PrecisionDebugger, say, is the same run.
        fmk: taken for the sake of old scripts; MindSpore's tensors and PyTorch's are known by
            themselves.
        numbered: call the files `<key>0.npy`, `<key>1.npy`, …, as msprobe's guide shows them.

    Raises:
        UsageError: fmk is unknown, or dump_path is no path.
        RunError: the directory cannot be written.
    """

    dump_path: str
    _shared: SharedProbe
    _current: ClassVar[SingleSave | None] = None
    _made: ClassVar[dict[str, SingleSave]] = {}

    def __new__(
        cls, dump_path: _PathLike, fmk: str = "pytorch", *, numbered: bool = False
    ) -> SingleSave:
        """Make the saver of `dump_path`, or return the one there is, as the current one."""
        if fmk not in _FRAMEWORKS:
            raise UsageError.saying("error.fmk", fmk=fmk, join=", ".join(_FRAMEWORKS))
        if not isinstance(dump_path, (str, os.PathLike)) or not os.fspath(dump_path):
            raise UsageError.saying("error.single_dump_path", dump_path=dump_path)
        from mindrlhf_msprobe.compat.shared import SharedProbe, probe_at, real_path

        place = real_path(dump_path)
        saver = cls._made.get(place)
        if saver is None:
            probe = probe_at(place)
            if probe is None:
                probe = _continued(place)
            else:
                probe.record_more(key_data_dump=True, configurations_dump=True)
            if numbered:
                probe.record_more(numbered_key_data=True)
            saver = super().__new__(cls)
            saver.dump_path = os.fspath(dump_path)
            saver._shared = SharedProbe.for_tool(probe, "SingleSave")
            cls._made[place] = saver
        cls._current = saver
        return saver

    @classmethod
    def save(cls, data: Mapping[str, Any]) -> None:
        """Save data, name → value; the n-th save of a name in a step is its micro-step n.

        Values are tensors, arrays, numbers, texts, and lists, tuples and dicts of them. As with
        msprobe, data that are no dict and names that are no text are left out with a warning.

        Raises:
            UsageError: no SingleSave was made, or a name cannot name a directory; the other names
                of the call are saved.
        """
        cls._for("save").probe.save_data(_named("save", data))

    @classmethod
    def save_ex(cls, data: Mapping[str, Any], micro_batch: int | None = None) -> None:
        """Save data, name → value, as the micro-step `micro_batch`, which the caller counts.

        Saved twice, the last stays. None: without a micro-step: `<key>.npy` lies in `rank<N>`
        itself. What `save` counts does not change.

        Raises:
            UsageError: as `save`, or micro_batch is no micro-step.
        """
        probe = cls._for("save_ex").probe
        number = micro_batch
        if micro_batch is not None:
            try:
                number = operator.index(micro_batch)
            except TypeError:
                number = -1
            if isinstance(micro_batch, bool) or not 0 <= number <= _LARGEST_MICRO_STEP:
                known = {"given": micro_batch, "largest_micro_step": _LARGEST_MICRO_STEP}
                raise UsageError.saying("error.micro_batch", **known)
        probe.save_data_at(number, _named("save_ex", data))

    @classmethod
    def save_config(cls, data: Any) -> None:
        """Write configurations.json; what was saved under other names before stays in it.

        Raises:
            UsageError: no SingleSave was made, or data are no mapping.
        """
        cls._for("save_config").probe.save_configs(data)

    @classmethod
    def step(cls) -> None:
        """End the step: when this returns, everything saved in it is readable on disk.

        Raises:
            UsageError: no SingleSave was made.
        """
        cls._for("step").step("SingleSave")

    @classmethod
    def _for(cls, call: str) -> SharedProbe:
        if cls._current is None:
            raise UsageError.saying("error.single_first", call=call)
        return cls._current._shared


def _named(call: str, data: Any) -> dict[str, Any]:
    """Return the names and values of data; what msprobe leaves out is left out with a warning."""
    if not isinstance(data, Mapping):
        warn("log.single_no_dict", call=call, kind=type(data).__name__)
        return {}
    for name in data:
        if not isinstance(name, str):
            warn("log.single_no_text", call=call, name=repr(name))
    return {name: value for name, value in data.items() if isinstance(name, str)}


def _continued(place: str) -> Probe:
    """Return a probe that records into `place`, behind what is there already.

    A program that ended may have left a step without ending it: scripts that never call `step()`
    have no other, so it stays. What one that was killed left of a step is recorded again, so that
    all ranks go on with the same one.
    """
    from mindrlhf_msprobe.capture.recording.recorder import current_rank
    from mindrlhf_msprobe.probe import Probe
    from mindrlhf_msprobe.storage.manifest.claim import own_manifest
    from mindrlhf_msprobe.storage.manifest.run_file import FINISHED, INTERRUPTED

    root = Path(place)
    steps: list[int | None] = [-1]
    earlier = own_manifest(root, current_rank(os.environ))
    if earlier is not None:
        steps += [attempt.last_completed_step for attempt in earlier.attempts]
        ended = [a for a in earlier.attempts if a.state in (FINISHED, INTERRUPTED)]
        steps += [attempt.unfinished_step for attempt in ended]
    elif root.is_dir() and not layout.manifests(root):  # by msprobe, which has no attempts
        steps += [number for number, _ in layout.step_directories(root)]
    step = max(number for number in steps if isinstance(number, int)) + 1
    settings = {"msprobe": True, "dump_path": place, "key_data_dump": True, "existing": "resume"}
    probe = Probe.from_config({**settings, "initial_step": step})
    probe.record_more(configurations_dump=True)  # where it is saved
    if earlier is not None or len(steps) > 1:
        warn("log.single_continues", place=place, step=probe.current_step)
    return probe


class SingleComparator:
    """Compares the key data of two runs."""

    @classmethod
    def compare(
        cls,
        dir1: _PathLike,
        dir2: _PathLike,
        output_path: _PathLike = "./msprobe_compare_output",
        num_processes: int = 8,
    ) -> None:
        """Compare key data; write one table a key, summary.xlsx and verdict.json.

        Args:
            dir1, dir2: the dump_path of each run, or its directory `data`.
            output_path: where the tables are written.
            num_processes: how many processes compare at once, at most.

        Raises:
            UsageError: num_processes is not a number from 1 to 128.
            RunError: a directory is not a run, both are the same, they have nothing in common, or
                the output cannot be written.
        """
        whole = isinstance(num_processes, int) and not isinstance(num_processes, bool)
        if not whole or not 1 <= num_processes <= _MOST_PROCESSES:
            raise UsageError.saying(
                "error.num_processes", num_processes=num_processes, most_processes=_MOST_PROCESSES
            )
        from mindrlhf_msprobe.api import compare_runs
        from mindrlhf_msprobe.common.processes import available_cores
        from mindrlhf_msprobe.compat.comparing import answer

        a, b = _run_of(dir1), _run_of(dir2)
        workers = num_processes if num_processes < available_cores() else None
        log.configure()
        answer(
            compare_runs(a, b, output_path=Path(output_path), workers=workers, key_data_only=True)
        )


def _run_of(directory: _PathLike) -> Path:
    """Return the dump_path of what may be given as its directory `data`."""
    path = Path(directory)
    if path.name == layout.KEY_DATA_DIR and not (path / layout.KEY_DATA_DIR).is_dir():
        path = path.parent
    if not (path / layout.KEY_DATA_DIR).is_dir():
        raise RunError.saying(
            "error.no_key_data",
            directory=directory,
            value=path / layout.KEY_DATA_DIR,
            key_data_dir=layout.KEY_DATA_DIR,
        )
    return path
