"""A trainer's script, run as `python script.py …` would run it, with the integrations in place."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.integrations import mindrlhf
from mindrlhf_msprobe.log import configure

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
    reported by Python as always; the traceback that Python prints begins with the script.

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
    sys.excepthook = _beginning_in(vars(main), sys.excepthook)
    exec(loader.source_to_code(loader.get_data(script), path), vars(main))


def _beginning_in(names: dict[str, Any], report: _ExceptHook) -> _ExceptHook:
    """Return `report`, which prints an exception, without the frames before those of a module."""

    def report_script(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        while trace is not None and trace.tb_frame.f_globals is not names:
            trace = trace.tb_next
        report(kind, error.with_traceback(trace), trace)

    return report_script
