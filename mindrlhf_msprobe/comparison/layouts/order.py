"""When what several ranks did happened in the whole: their clocks are not comparable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from mindrlhf_msprobe.comparison.layouts.layout import PIPELINE, Layout
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.records import Entry

_Entries = Mapping[tuple[str, str], Mapping[int, Entry]]
_Data = Mapping[tuple[str, int], Mapping[int, KeyDatum]]
#: (phase, opening)
_Opened = tuple[str, int]
#: What events are ordered by, an entry or a save, and which of its times it is.
_Event = tuple[tuple[int, bool, int, int], tuple[str, Any], str]


def in_time(
    entries: _Entries, data: _Data, layout: Layout | None
) -> tuple[list[Entry], dict[tuple[str, int], int | None]]:
    """Return the entries of the whole, without records, and when each key was saved.

    Without a pipeline all ranks run the same, so the clock of the lowest that ran it counts. With
    one, of every opening of a phase the stages follow each other, forward and then back.

    Args:
        entries: (phase, name in the whole) → rank → entry.
        data: (key, micro-step) → rank → save.
    """
    if layout is None or PIPELINE not in layout.cut:
        found = [_of_whole(name, of, layout, min(of)) for (_, name), of in entries.items()]
        saves = {at: of[min(of)].seq for at, of in data.items()}
        return sorted(found, key=lambda entry: entry.seq), saves
    return _by_stages(entries, data, layout)


def _of_whole(name: str, of_ranks: Mapping[int, Entry], layout: Layout | None, rank: int) -> Entry:
    entry = of_ranks[rank]
    parent = entry.parent
    if parent is not None and layout is not None:
        parent = layout.shifted(parent, rank)
    return replace(entry, name=name, parent=parent, rank=0, records=())


def _by_stages(
    entries: _Entries, data: _Data, layout: Layout
) -> tuple[list[Entry], dict[tuple[str, int], int | None]]:
    begun = _begun(entries)
    turn = _turns(begun)
    events = [*_entry_events(entries, turn, layout), *_save_events(data, begun, turn)]
    times: dict[tuple[Any, str], int] = {}
    for number, (_, at, kind) in enumerate(sorted(events, key=lambda event: event[0])):
        times[at, kind] = number
    found = []
    for at, of_entry in entries.items():
        entry = _of_whole(at[1], of_entry, layout, min(of_entry))
        found.append(replace(entry, seq=times[at, "seq"], end=times.get((at, "end"))))
    saves = {save: times.get((save, "save")) for save in data}
    return sorted(found, key=lambda entry: entry.seq), saves


def _begun(entries: _Entries) -> dict[int, dict[_Opened, int]]:
    """Return when each opening of a phase began, by the clock of each rank."""
    begun: dict[int, dict[_Opened, int]] = {}
    for of_ranks in entries.values():
        for rank, entry in of_ranks.items():
            own, opened = begun.setdefault(rank, {}), (entry.phase, entry.opening)
            own[opened] = min(own.get(opened, entry.seq), entry.seq)
    return begun


def _turns(begun: Mapping[int, Mapping[_Opened, int]]) -> dict[_Opened, int]:
    """Return the number of each opening of a phase among all, in the order of the lowest ranks."""
    turn: dict[_Opened, int] = {}
    for rank in sorted(begun):
        for opened in sorted(begun[rank], key=begun[rank].__getitem__):
            turn.setdefault(opened, len(turn))
    return turn


def _entry_events(
    entries: _Entries, turn: Mapping[_Opened, int], layout: Layout
) -> Iterator[_Event]:
    """Yield the begin and the end of each entry, by the stages that ran it first and last."""
    for at, of_entry in entries.items():
        stages: dict[int, int] = {}  # the lowest rank of each
        for rank in sorted(of_entry):
            stages.setdefault(layout.place(rank, PIPELINE), rank)
        back = next(iter(of_entry.values())).direction != "forward"
        first, last = (min(stages), max(stages))[:: -1 if back else 1]
        begin, end = of_entry[stages[first]], of_entry[stages[last]]
        number = turn[begin.phase, begin.opening]
        sign = -1 if back else 1
        yield (2 * number + 1, back, sign * first, begin.seq), at, "seq"
        if end.end is not None:
            yield (2 * number + 1, back, sign * last, end.end), at, "end"


def _save_events(
    data: _Data, begun: Mapping[int, Mapping[_Opened, int]], turn: Mapping[_Opened, int]
) -> Iterator[_Event]:
    """Yield each save, behind the openings that its lowest rank had begun before it."""
    for save, of_save in data.items():
        rank = min(of_save)
        seq = of_save[rank].seq
        if seq is not None:
            before = (turn[opened] for opened, at in begun.get(rank, {}).items() if at < seq)
            yield (2 * max(before, default=-1) + 2, False, 0, seq), save, "save"
