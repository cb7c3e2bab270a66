"""Sheets → an Excel file.

Written without a library: of 3.3 million cells openpyxl takes 15 µs each, XlsxWriter 7, this 1.5
(benchmarks/table_rows.py); and to load them takes 0.07 and 0.03 s of a command of 0.2 s.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import IO
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from mindrlhf_msprobe.report.formats.package import around_rows, files_around, sheet_file
from mindrlhf_msprobe.report.formats.rows import CHUNK, rows_of
from mindrlhf_msprobe.report.formats.sheets import Sheet

_MANY_ROWS = 100_000  # may need more than a zip file holds without its extension
_MOST_WAITING = 4  # chunks that wait to be compressed
_LEVEL = 3  # of compression: half the time of the usual 6, a tenth larger


def write_xlsx(path: Path, sheets: Sequence[Sheet]) -> None:
    """Write the sheets as one workbook.

    Raises:
        OSError: it cannot be written.
    """
    large = any(sheet.count > _MANY_ROWS for sheet in sheets)
    try:
        _write(path, sheets, large=large)
    except RuntimeError:  # larger than it looked
        if large:
            raise
        _write(path, sheets, large=True)


def _write(path: Path, sheets: Sequence[Sheet], *, large: bool) -> None:
    with ZipFile(path, "w", ZIP_DEFLATED, compresslevel=_LEVEL) as target:
        for name, content in files_around(sheets).items():
            target.writestr(_member(name), content)
        for number, sheet in enumerate(sheets, start=1):
            member = _member(sheet_file(number))
            head, tail = (text.encode() for text in around_rows(sheet))
            if sheet.count < CHUNK:  # not worth a thread
                target.writestr(member, b"".join((head, *rows_of(sheet), tail)))
                continue
            with target.open(member, "w", force_zip64=large) as file, _beside(file) as write:
                write(head)
                for chunk in rows_of(sheet):
                    write(chunk)
                write(tail)


def _member(name: str) -> ZipInfo:
    """Return a file of the workbook, of no time: the same rows are the same bytes."""
    member = ZipInfo(name)
    member.compress_type = ZIP_DEFLATED
    member.external_attr = 0o600 << 16
    level = "compress_level" if hasattr(member, "compress_level") else "_compresslevel"
    setattr(member, level, _LEVEL)
    return member


@contextlib.contextmanager
def _beside(file: IO[bytes]) -> Iterator[Callable[[bytes], object]]:
    """Yield what writes into a file in a thread: compressing leaves Python to the next rows.

    Raises:
        OSError, RuntimeError: what writing raised.
    """
    chunks: SimpleQueue[bytes | None] = SimpleQueue()
    room = threading.Semaphore(_MOST_WAITING)
    raised: list[BaseException] = []

    def work() -> None:
        while (chunk := chunks.get()) is not None:
            try:
                if not raised:
                    file.write(chunk)
            except BaseException as error:
                raised.append(error)
            finally:
                room.release()

    def write(chunk: bytes) -> None:
        room.acquire()
        if raised:
            raise raised[0]
        chunks.put(chunk)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield write
    finally:
        chunks.put(None)
        thread.join()
    if raised:
        raise raised[0]
