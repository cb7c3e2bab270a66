"""What an earlier comparison found, read from its verdict.json, which may hold anything."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.message import Message
from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.findings import SCHEMA, VERDICT_FILE, Divergence, Earlier, Outcome, Relation
from mindrlhf_msprobe.phases import SET_KEYS, key_data_home
from mindrlhf_msprobe.storage.layout import UnreadError
from mindrlhf_msprobe.storage.manifest.run_file import refuse_other_schema
from mindrlhf_msprobe.storage.records import cell_name, direction_of, is_optimizer_state

_MOST_BYTES = 64 << 20
_LONGEST = 1000  # characters of a name


def load_earlier(path: str | Path) -> Earlier:
    """Read what a comparison that wrote into the directory `path` found.

    Raises:
        RunError: there is no verdict.json, it is none of this tool's, or has another schema.
    """
    file = Path(path)
    if file.name != VERDICT_FILE or file.is_dir():
        file = file / VERDICT_FILE
    try:
        if not file.is_file():
            raise RunError.saying("error.no_earlier", path=path, verdict_file=VERDICT_FILE)
        with open(file, "rb") as stream:
            if os.fstat(stream.fileno()).st_size > _MOST_BYTES:
                raise UnreadError.saying("error.too_large", most=_MOST_BYTES)
            content = json.loads(stream.read(_MOST_BYTES + 1))
        if isinstance(content, dict):
            # One without any may be somebody else's file: the rest decides.
            refuse_other_schema(file, {"schema": SCHEMA, **content}, SCHEMA)
        return _earlier(str(path), content)
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, UnreadError):
            reason: Message | str = error.said
        else:
            reason = getattr(error, "strerror", None) or str(error)
        raise RunError.saying("error.earlier_unusable", file=file, reason=reason) from None


def _earlier(path: str, content: Any) -> Earlier:
    if not isinstance(content, dict):
        raise UnreadError.saying("error.earlier_no_object")
    status = content.get("status")
    if not isinstance(status, str) or status not in {outcome.value for outcome in Outcome}:
        raise UnreadError.saying("error.earlier_status")
    first = content.get("first_divergence")
    recorded = content.get("recorded")
    whole = isinstance(recorded, dict) and recorded.get("all_cells") is True
    if content.get("chosen") is not None:
        whole = False
    if first is None:
        return Earlier(path, Outcome(status), all_cells=whole)
    if not isinstance(first, dict):
        raise UnreadError.saying("error.earlier_divergence")
    return Earlier(
        path,
        Outcome(status),
        step=_number(first, "step"),
        rank=_number(first, "rank"),
        phase=_text(first, "phase"),
        record=_text(first, "record"),
        entry=_text(first, "entry"),
        all_cells=whole,
        agreed_before=_number(first, "agreed_before"),
    )


def _number(content: dict[str, Any], name: str) -> int | None:
    value = content.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise UnreadError.saying("error.earlier_value", name=name, number=True)
    return value


def _text(content: dict[str, Any], name: str) -> str | None:
    value = content.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > _LONGEST:
        raise UnreadError.saying("error.earlier_value", name=name, number=False)
    return value


def relation(earlier: Earlier, first: Divergence | None) -> Relation:
    """Return how what was found now stands to what was found before."""
    if first is None:
        return Relation.NOT_SEEN if earlier.record is not None else Relation.AGREED
    if earlier.record is None:
        return Relation.NEW
    if earlier.step != first.step:
        return Relation.ELSEWHERE
    if earlier.entry is not None or first.entry is None:
        before, now = (x.entry or x.record for x in (earlier, first))
        same = before == now and earlier.phase == first.phase
        return Relation.SAME if same else Relation.ELSEWHERE
    if earlier.phase != first.phase:
        return Relation.BEFORE
    # A key was named in the phase of the entry.
    key, entry = earlier.record, first.entry
    home = key_data_home(key) or key_data_home(key.partition(".")[0])
    if key in SET_KEYS:
        return Relation.ELSEWHERE
    if home is None or not (home.before_phase or home.forward):
        return Relation.INSIDE
    forward = direction_of(entry) == "forward" and not is_optimizer_state(cell_name(entry))
    return Relation.INSIDE if forward and home.forward else Relation.FOLLOWS
