"""Copies the journals of a run into columns, one file a rank."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.columns.columns import journal_columns
from mindrlhf_msprobe.storage.columns.layouts import Layouts
from mindrlhf_msprobe.storage.columns.parquet import ColumnsWriter, Source, content_digest
from mindrlhf_msprobe.storage.reading.reader import Run


@dataclass(frozen=True)
class Exported:
    """What was copied.

    Attributes:
        files: one a rank.
        records: how many values they hold.
        size, journals: bytes of the files, and of the journals that were copied.
        left_out: the journals that were not: (phase, step, rank).
    """

    files: tuple[Path, ...] = ()
    records: int = 0
    size: int = 0
    journals: int = 0
    left_out: tuple[tuple[str, int, int], ...] = ()


def export_run(run: Run, directory: Path, ranks: Iterable[int] | None = None) -> Exported:
    """Write `columns.rank<N>.parquet` for each rank; what is not a whole journal is left out.

    Args:
        directory: the run's own, so that all commands read the columns, or another one.
        ranks: None: all.

    Raises:
        ModuleNotFoundError: there is no pyarrow.
        OSError: a file cannot be written.
    """
    layouts, found = Layouts(), Exported()
    directory.mkdir(parents=True, exist_ok=True)
    for rank in run.ranks if ranks is None else ranks:
        one = _export_rank(run, directory / layout.columns_name(rank), rank, layouts)
        found = Exported(
            (*found.files, *one.files),
            found.records + one.records,
            found.size + one.size,
            found.journals + one.journals,
            (*found.left_out, *one.left_out),
        )
    return found


def _export_rank(run: Run, path: Path, rank: int, layouts: Layouts) -> Exported:
    writer = ColumnsWriter(path)
    records = journals = 0
    left_out: list[tuple[str, int, int]] = []
    try:
        for step in run.steps:
            for phase in run.phases_at(step, rank):
                at = phase, step, rank
                # First what tells whether it changes, then what is in it.
                status = os.stat(run.journal_path(*at)) if run.has_journal(*at) else None
                content = None if status is None else run.journal(*at)
                columns = None if content is None else journal_columns(run, *at, layouts)
                if status is None or content is None or columns is None:
                    left_out.append(at)
                    continue
                source = Source(status.st_size, status.st_mtime_ns, content_digest(content))
                if len(content) != status.st_size or not writer.add(columns, source):
                    left_out.append(at)
                    continue
                records += len(columns.values)
                journals += len(content)
        size = writer.close()
    except BaseException:
        writer.abandon()
        raise
    return Exported((path,), records, size, journals, tuple(left_out))
