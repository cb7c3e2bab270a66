"""A trainer's script, run as `python script.py …` would run it, with the integrations in place."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from weakref import ref

from mindrlhf_msprobe.common.current import CURRENT
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.common.printable import size
from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.integrations import mindformers_patches, mindrlhf
from mindrlhf_msprobe.log import configure, inform

_ExceptHook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


def check_script(script: str) -> None:
    """Refuse what cannot be run.

    Raises:
        UsageError: there is no such file.
    """
    if not os.path.isfile(script):
        what = message("error.is_directory" if os.path.isdir(script) else "error.no_path")
        raise UsageError.saying("error.no_script", script=script, what=what)


def start(script: str, arguments: Sequence[str]) -> None:
    """Run a script as the process's `__main__`.

    It sees the sys.argv and the sys.path that Python would give it. What it raises is raised, to be
    reported by Python as always; the traceback that Python prints begins with the script. On a
    terminal each step that is recorded is a line.

    Args:
        script: the path of a Python source file.
        arguments: what stands behind it on the command line.
    """
    main, path = ModuleType("__main__"), os.path.abspath(script)
    loader = SourceFileLoader("__main__", script)
    vars(main).update(
        __file__=path,
        __loader__=SourceFileLoader("__main__", path),
        __builtins__=sys.modules["builtins"],
        __annotations__={},
        __cached__=None,
    )
    sys.argv = [script, *arguments]
    if not getattr(sys.flags, "safe_path", False):  # Python puts nothing first then either
        sys.path[0] = str(Path(script).resolve().parent)
    sys.modules["__main__"] = main
    configure()
    mindrlhf.install()
    mindformers_patches.install()
    if sys.stderr is not None and sys.stderr.isatty():
        CURRENT.step_ended = _say_step
    sys.excepthook = _beginning_in(ref(main), sys.excepthook)
    exec(loader.source_to_code(loader.get_data(script), path), vars(main))


def _say_step(step: int, written: int, seconds: float) -> None:
    if written:
        inform("log.step_recorded", step=step, size=size(written), seconds=seconds)
    else:
        inform("log.step_not_recorded", step=step)


def _beginning_in(module: ref[ModuleType], report: _ExceptHook) -> _ExceptHook:
    """Return `report`, which prints an exception, without the frames before those of a module.

    It holds no global of the script: at the end of the process these go first, as under Python.
    """

    def report_script(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        script = module()
        names = None if script is None else vars(script)
        while trace is not None and trace.tb_frame.f_globals is not names:
            trace = trace.tb_next
        report(kind, error.with_traceback(trace), trace)

    return report_script
