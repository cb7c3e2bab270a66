"""Every format of a directory that is neither a run of this package nor msprobe's dump."""

from __future__ import annotations

from mindrlhf_msprobe.storage.foreign.format import Format
from mindrlhf_msprobe.storage.foreign.mindformers_monitor import MINDFORMERS_MONITOR
from mindrlhf_msprobe.storage.foreign.mindspore_dump import MINDSPORE_DUMP

#: Each is tried where neither this package's nor msprobe's layout is found.
FORMATS: tuple[Format, ...] = (MINDSPORE_DUMP, MINDFORMERS_MONITOR)
