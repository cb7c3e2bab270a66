"""Scalars → TensorBoard's event files, through tensorboardX, which MindFormers depends on."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from mindrlhf_msprobe.common.text.printable import printable
from mindrlhf_msprobe.errors import UsageError


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
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise UsageError.saying("trend.no_tensorboardx", why=str(error)) from None
        self._writer, self._directory = SummaryWriter, directory
        self._open: dict[str, Any] = {}

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
        if folder not in self._open:
            self._open[folder] = self._writer(str(self._directory / folder))
        self._open[folder].add_scalar(printable(tag), value, step)

    def flush(self) -> None:
        """Write what is pending."""
        for writer in self._open.values():
            writer.flush()

    def close(self) -> None:
        """Write what is pending and close the files."""
        for writer in self._open.values():
            writer.close()
        self._open.clear()
