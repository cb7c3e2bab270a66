"""SingleSave, SingleComparator and compare_distributed: scripts written for msprobe's keep running.

Files and tables are those of this package, which msprobe's tools read too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from mindrlhf_msprobe import log
from mindrlhf_msprobe.errors import RunError, UsageError, nearest
from mindrlhf_msprobe.log import logger
from mindrlhf_msprobe.storage import layout

if TYPE_CHECKING:
    from mindrlhf_msprobe.compat.shared import SharedProbe
    from mindrlhf_msprobe.findings import Comparison
    from mindrlhf_msprobe.probe import Probe

_PathLike = str | os.PathLike[str]

_FRAMEWORKS = ("pytorch", "mindspore")
_MOST_PROCESSES = 128

#: What msprobe's compare_distributed takes for its console and its tables, which differ here.
_OF_THE_OUTPUT = (
    *("is_print_compare_log", "fuzzy_match", "stack_mode", "auto_analyze", "highlight", "xlsx"),
    *("diff_analyze", "first_diff_analyze", "consistent_check", "backend", "config"),
)
_MAPPINGS = ("cell_mapping", "api_mapping", "data_mapping", "layer_mapping")


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
        fmk: taken for the sake of old scripts; tensors are MindSpore's either way.

    Raises:
        UsageError: fmk is unknown, or dump_path is no path.
        RunError: the directory cannot be written.
    """

    dump_path: str
    _shared: SharedProbe
    _current: ClassVar[SingleSave | None] = None
    _made: ClassVar[dict[str, SingleSave]] = {}

    def __new__(cls, dump_path: _PathLike, fmk: str = "pytorch") -> SingleSave:
        """Make the saver of `dump_path`, or return the one there is, as the current one."""
        if fmk not in _FRAMEWORKS:
            raise UsageError(
                f"SingleSave(fmk={fmk!r}); expected one of {', '.join(_FRAMEWORKS)}. It is taken "
                f"for the sake of old scripts: tensors are MindSpore's."
            )
        if not isinstance(dump_path, (str, os.PathLike)) or not os.fspath(dump_path):
            raise UsageError(f"SingleSave(dump_path={dump_path!r}); expected a directory's path.")
        from mindrlhf_msprobe.compat.shared import SharedProbe, place_of, probe_at

        place = place_of(dump_path)
        saver = cls._made.get(place)
        if saver is None:
            probe = probe_at(place)
            if probe is None:
                probe = _continued(place)
            else:
                probe.record_more(key_data_dump=True, configurations_dump=True)
            saver = super().__new__(cls)
            saver.dump_path = os.fspath(dump_path)
            saver._shared = SharedProbe.of(probe, "SingleSave")
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
        probe = cls._for("save").probe
        if not isinstance(data, Mapping):
            logger.warning(
                "SingleSave.save() got %s; expected a dict of name to data. Nothing was saved.",
                type(data).__name__,
            )
            return
        named = {name: value for name, value in data.items() if isinstance(name, str)}
        for name in data:
            if not isinstance(name, str):
                logger.warning("SingleSave.save() left out the name %r: it is no text.", name)
        probe.save_data(named)

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
            raise UsageError(
                f"SingleSave.{call}() before SingleSave(dump_path): nothing says where to save."
            )
        return cls._current._shared


def _continued(place: str) -> Probe:
    """Return a probe that records into `place`, behind what is there already.

    A program that ended may have left a step without ending it: scripts that never call `step()`
    have no other, so it stays. What one that was killed left of a step is recorded again, so that
    all ranks go on with the same one.
    """
    from mindrlhf_msprobe.capture.recorder import current_rank
    from mindrlhf_msprobe.probe import Probe
    from mindrlhf_msprobe.storage.claim import own_manifest
    from mindrlhf_msprobe.storage.ending import FINISHED, INTERRUPTED

    root = Path(place)
    steps: list[int | None] = [-1]
    earlier = own_manifest(root, current_rank(os.environ))
    if earlier is not None:
        attempts = [a for a in earlier.get("attempts") or [] if isinstance(a, dict)]
        steps += [a.get("last_completed_step") for a in attempts]
        ended = (FINISHED, INTERRUPTED)
        steps += [a.get("unfinished_step") for a in attempts if a.get("state") in ended]
    elif root.is_dir() and not layout.manifests(root):  # by msprobe, which has no attempts
        steps += [layout.step_number(path.name) for path in layout.step_directories(root)]
    step = max(number for number in steps if isinstance(number, int)) + 1
    probe = Probe.from_config(
        {
            "msprobe": True,
            "dump_path": place,
            "key_data_dump": True,
            "existing": "resume",
            "initial_step": step,
        }
    )
    probe.record_more(configurations_dump=True)  # where it is saved; nobody has asked for it
    if earlier is not None or len(steps) > 1:
        logger.warning(
            "SingleSave: %s holds a run already; it is continued with step %d. Give every run a "
            "dump_path of its own to keep them apart.",
            place,
            probe.current_step,
        )
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
            raise UsageError(
                f"num_processes is {num_processes!r}; expected a whole number from 1 to "
                f"{_MOST_PROCESSES}."
            )
        from mindrlhf_msprobe.comparison import compare_runs
        from mindrlhf_msprobe.cores import available_cores

        a, b = _run_of(dir1), _run_of(dir2)
        workers = num_processes if num_processes < available_cores() else None
        log.configure()
        _tell(
            compare_runs(a, b, output_path=Path(output_path), workers=workers, key_data_only=True)
        )


def compare_distributed(
    dir1: _PathLike | None = None,
    dir2: _PathLike | None = None,
    output_path: _PathLike | None = None,
    **options: Any,
) -> None:
    """Compare the layer data of two runs, all ranks: what lies below one step of each, usually.

    Writes `compare_result_<time>.xlsx`, of several ranks `compare_result_rank<N>_<time>.xlsx` each,
    beside what earlier comparisons wrote.

    Args:
        dir1, dir2: directories `…/step<N>` with the ranks in them, or a phase's, or a whole run's;
            also by msprobe's names, npu_dump_dir and bench_dump_dir.
        output_path: where the tables are written.
        options: those of msprobe that concern its console and tables; they change nothing.

    Raises:
        UsageError: a directory is not given, an option is unknown, or would compare something else.
        RunError: a directory is not a run, both are the same, they have nothing in common, or the
            output cannot be written.
    """
    dir1 = options.pop("npu_dump_dir", dir1)
    dir2 = options.pop("bench_dump_dir", dir2)
    if dir1 is None or dir2 is None or output_path is None:
        raise UsageError(
            f"compare_distributed(dir1={dir1!r}, dir2={dir2!r}, output_path={output_path!r}); "
            f"expected two directories to compare and one to write into."
        )
    for name, value in options.items():
        if name in _MAPPINGS and value:
            raise UsageError(
                f"compare_distributed({name}={value!r}) is not offered; names are brought together "
                f"by compare_runs(…, mapping=FILE)."
            )
        if name not in (*_OF_THE_OUTPUT, *_MAPPINGS):
            raise UsageError(
                f"compare_distributed() got the unknown option {name}={value!r}."
                f"{nearest(name, (*_OF_THE_OUTPUT, *_MAPPINGS))}"
            )
    from mindrlhf_msprobe.comparison import compare_runs

    log.configure()
    _tell(compare_runs(Path(dir1), Path(dir2), output_path=Path(output_path), keep_earlier=True))


def _run_of(directory: _PathLike) -> Path:
    """Return the dump_path of what may be given as its directory `data`."""
    path = Path(directory)
    if path.name == layout.KEY_DATA_DIR and not (path / layout.KEY_DATA_DIR).is_dir():
        path = path.parent
    if not (path / layout.KEY_DATA_DIR).is_dir():
        raise RunError(
            f"{directory} holds no key data: there is no {path / layout.KEY_DATA_DIR}. Give the "
            f"dump_path of a run with key data ({layout.KEY_DATA_DIR}/<key>/step<N>/rank<N>)."
        )
    return path


def _tell(comparison: Comparison) -> None:
    """Log the answer; a comparison of nothing is an error."""
    from mindrlhf_msprobe.findings import Outcome
    from mindrlhf_msprobe.report.console import render

    text = render(comparison)
    if comparison.verdict.status is Outcome.INCOMPARABLE:
        raise RunError(text)
    (logger.info if comparison else logger.warning)("%s", text)
