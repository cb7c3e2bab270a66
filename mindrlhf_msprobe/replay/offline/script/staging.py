"""Where a folder is written: beside its place, so that nothing is left of a refused replay."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mindrlhf_msprobe.errors import MsprobeError, RunError
from mindrlhf_msprobe.replay.offline.script.folder import ENTRY, SCRIPT, SIDES


class ScriptError(RunError):
    """A script that failed: its folder stays, so that it can be run by itself."""


@contextmanager
def staged(output: Path) -> Iterator[Path]:
    """Yield an empty folder, whose files are moved to `output` at the end.

    If it ends by an error of this tool other than `ScriptError`, `output` stays as it was.

    Raises:
        RunError: `output` holds something else than a replay, or cannot be written.
    """
    with _written(output):
        held = {path.name for path in output.iterdir()} if output.exists() else set()
        if held and SCRIPT not in held:
            raise RunError.saying("replay.other_folder", path=str(output), held=min(held))
        around = next(path for path in (output, *output.absolute().parents) if path.exists())
        made = Path(tempfile.mkdtemp(prefix=".replay-", dir=around))
    try:
        yield made
    except MsprobeError as error:
        if isinstance(error, ScriptError):
            _move(made, output)
        raise
    except Exception:
        _move(made, output)
        raise
    else:
        _move(made, output)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _move(made: Path, output: Path) -> None:
    """Move the files of a folder to where they belong; what an earlier replay wrote there goes."""
    with _written(output):
        output.mkdir(parents=True, exist_ok=True)
        for side in SIDES:
            for path in (output / side).glob("*.npy"):
                path.unlink()
        if not (made / SIDES[1]).exists() and (output / SIDES[1] / ENTRY).exists():
            (output / SIDES[1] / ENTRY).unlink()
            with suppress(OSError):  # it holds something of the user's
                (output / SIDES[1]).rmdir()
        for path in sorted(made.rglob("*")):
            place = output / path.relative_to(made)
            if path.is_dir():
                place.mkdir(exist_ok=True)
            else:
                os.replace(path, place)


@contextmanager
def _written(output: Path) -> Iterator[None]:
    """Say of an error of the system that `output` cannot be written."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise RunError.saying("replay.unwritten", path=str(output), why=why) from None
