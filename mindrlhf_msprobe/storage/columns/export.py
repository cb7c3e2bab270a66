"""Copies journals into columns: of a run, or of the rank that has just been recorded."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.log import warn
from mindrlhf_msprobe.phases import UNNAMED_PHASE
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.columns.layouts import Layouts
from mindrlhf_msprobe.storage.columns.parquet import ColumnsWriter, Source, content_digest
from mindrlhf_msprobe.storage.columns.reading import columns_of_journal
from mindrlhf_msprobe.storage.place import LayerPlace
from mindrlhf_msprobe.storage.reading.reader import Run

_WORTH = 4 << 20  # bytes of a rank's journals from which on a copy is made when the run ends


@dataclass
class Exported:
    """What was copied.

    Attributes:
        files: one a rank.
        records: how many values they hold.
        size, journals: bytes of the files, and of the journals that were copied.
        left_out: what is no whole journal of this package.
    """

    files: list[Path] = field(default_factory=list)
    records: int = 0
    size: int = 0
    journals: int = 0
    left_out: list[LayerPlace] = field(default_factory=list)

    def copy(
        self,
        root: Path,
        target: Path,
        journals: Mapping[LayerPlace, Path],
        read: Callable[[LayerPlace], bytes | None],
    ) -> None:
        """Write a file of columns.

        Args:
            root: the run's directory.
            read: returns a whole journal, or None.
        """
        writer, layouts = ColumnsWriter(target), Layouts()
        try:
            for at in sorted(journals, key=lambda at: (at.step, at.phase)):
                path = journals[at]
                # First when it was changed, then what is in it.
                status = os.stat(path) if os.path.isfile(path) else None
                content = None if status is None else read(at)
                columns = None
                if content is not None:
                    columns = columns_of_journal(content, root, at, layouts)
                if status is None or content is None or columns is None:
                    self.left_out.append(at)
                    continue
                source = Source(status.st_size, status.st_mtime_ns, content_digest(content))
                if len(content) != status.st_size or not writer.add(columns, source):
                    self.left_out.append(at)
                    continue
                self.records += len(columns.values)
                self.journals += len(content)
            self.size += writer.close()
        except BaseException:
            writer.abandon()
            raise
        self.files.append(target)


def export_run(run: Run, directory: Path) -> Exported:
    """Write `columns.rank<N>.parquet` for each rank of a run.

    Args:
        directory: the run's own, so that all commands read the columns, or another one.

    Raises:
        ModuleNotFoundError: there is no pyarrow.
        OSError: a file cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    found = Exported()
    for rank in run.ranks:
        journals = {at: run.journal_path(at) for at in run.layer_places(rank=rank)}
        found.copy(run.path, directory / layout.columns_name(rank), journals, run.journal)
    return found


def copy_of_rank(root: Path, rank: int) -> None:
    """Copy the journals of a rank that has ended, if they are large; what fails is said alone.

    Reading small ones takes no longer than their copy. Without pyarrow there is none.
    """
    journals: dict[LayerPlace, Path] = {}
    for step, step_dir in layout.step_directories(root):
        path = step_dir / f"rank{rank}" / layout.JOURNAL_FILE
        if path.is_file():
            phase = UNNAMED_PHASE if step_dir.parent == root else step_dir.parent.name
            journals[LayerPlace(phase, step, rank)] = path
    try:
        if sum(map(os.path.getsize, journals.values())) >= _WORTH:
            target = root / layout.columns_name(rank)
            Exported().copy(root, target, journals, lambda at: journals[at].read_bytes())
    except ModuleNotFoundError:
        return
    except Exception as error:  # nothing is lost: the journals are there
        warn("log.columns_unwritten", root=str(root), why=layout.why_unread(error))
