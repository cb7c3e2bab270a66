"""Scalars → TensorBoard's event files, through tensorboardX, which MindFormers depends on."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Any

from mindrlhf_msprobe.common.text.printable import printable
from mindrlhf_msprobe.errors import UsageError

_MOST_PENDING = 10_000  # values


class EventFiles:
    """Event files below a directory: one folder a run and rank, so that TensorBoard lays them over
    each other.

    Args:
        directory: what `tensorboard --logdir` is given.

    Raises:
        UsageError: tensorboardX is not installed.
        OSError: a directory cannot be made.
    """

    def __init__(self, directory: Path) -> None:
        try:
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto.event_pb2 import Event
            from tensorboardX.proto.summary_pb2 import Summary
        except ImportError as error:
            raise UsageError.saying("trend.no_tensorboardx", why=str(error)) from None
        self._writer, self._event, self._summary = EventsWriter, Event, Summary
        self._directory = directory
        self._open: dict[str, Any] = {}
        self._pending: dict[tuple[str, int], dict[str, float]] = {}
        self._count = 0

    def __enter__(self) -> EventFiles:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def scalar(self, folder: str, tag: str, value: float, step: int) -> None:
        """Write one value.

        Args:
            folder: below the directory, e.g. `rank0`.
            tag: what TensorBoard calls the curve; what stands before the first `/` is its section.
        """
        values = self._pending.setdefault((folder, step), {})
        tag = printable(tag)
        if tag in values or self._count >= _MOST_PENDING:
            self._write()
            values = self._pending.setdefault((folder, step), {})
        values[tag] = value
        self._count += 1

    def _write(self) -> None:
        """Write what is pending: one event holds all values of a step.

        Without tensorboardX's queue, through which an event goes as a pickle to a thread: what was
        flushed is there.
        """
        for (folder, step), values in self._pending.items():
            if folder not in self._open:
                (self._directory / folder).mkdir(parents=True, exist_ok=True)
                self._open[folder] = self._writer(str(self._directory / folder / "events"))
            of_step = [self._summary.Value(tag=tag, simple_value=v) for tag, v in values.items()]
            summary = self._summary(value=of_step)
            event = self._event(wall_time=time.time(), step=step, summary=summary)
            self._open[folder].write_event(event)
        self._pending.clear()
        self._count = 0

    def flush(self) -> None:
        """Write what is pending."""
        self._write()
        for writer in self._open.values():
            writer.flush()

    def close(self) -> None:
        """Write what is pending and close the files."""
        self._write()
        for writer in self._open.values():
            writer.close()
        self._open.clear()
