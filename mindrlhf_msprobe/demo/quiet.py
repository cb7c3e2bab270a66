"""What keeps the frameworks and the probe from chattering and littering the working directory."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mindrlhf_msprobe.log import logger as probe_logger


def quiet_frameworks(log_dir: str | os.PathLike[str]) -> None:
    """Send the frameworks' log files to `log_dir` and keep stdout and stderr for our own words.

    Call it before the first import of mindspore or mindformers: both read these settings while
    they are imported. An environment variable that is already set is left as it is.

    Without it, MindFormers writes `./output/log/rank_0/{info,error}.log` and repeats every INFO
    line on stdout, and MindSpore prints its warnings on stderr. Errors are still shown.

    Args:
        log_dir: an existing or a new directory. MindFormers sets the mode of the folders it logs
            to, therefore it gets a folder of its own inside.
    """
    os.environ.setdefault("GLOG_v", "3")  # MindSpore: 3 is ERROR
    log_path = os.environ.setdefault("LOG_MF_PATH", str(Path(log_dir).absolute() / "mindformers"))
    # MindFormers names its logger after the path, sets its level and adds its handlers itself,
    # but it never touches the filters.
    logger = logging.getLogger(f"mindformers{os.path.expanduser(log_path)}")
    logger.addFilter(_is_error)


@contextmanager
def quiet_probe() -> Iterator[None]:
    """Keep back what the probe tells users of their own training: how much room a step takes."""
    probe_logger.addFilter(_is_no_information)
    try:
        yield
    finally:
        probe_logger.removeFilter(_is_no_information)


def _is_no_information(record: logging.LogRecord) -> bool:
    return record.levelno != logging.INFO


def _is_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR
