"""What a run holds, as text for the console."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.text.numbers import size, spans
from mindrlhf_msprobe.common.text.printable import printable, shortened
from mindrlhf_msprobe.report.console.shared.width import padded, width_of
from mindrlhf_msprobe.report.console.shared.wording import stopped_at
from mindrlhf_msprobe.report.messages import say
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.manifest.ending import Stop
from mindrlhf_msprobe.storage.reading.holdings.estimate import KEY_DATA
from mindrlhf_msprobe.storage.reading.holdings.inventory import FoundRecord, Holding
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.reading.step_times import StepTimes
from mindrlhf_msprobe.storage.records import Entry

_MOST_LEFT_OUT = 20  # directories that are named
_LONGEST_VALUE = 40  # characters of a text that stand in a row


def render_holdings(
    path: Path,
    state: str,
    holdings: Sequence[Holding],
    problems: Sequence[str],
    cost: Mapping[int, Mapping[str, Any]] | None = None,
) -> str:
    """Return the list of a run's phases and keys, and what recording them cost."""
    rows = [header("run")]
    rows += [
        (
            printable(holding.name),
            spans(holding.steps),
            spans(holding.ranks),
            str(holding.count),
            str(holding.records),
            size(holding.size),
        )
        for holding in holdings
    ]
    whole = size(sum(holding.size for holding in holdings))
    state = say("listing.states", state=state)
    lines = [say("listing.of_run", path=str(path), state=state, size=whole)]
    lines += in_columns(rows)
    lines += render_cost(cost or {})
    lines += [say("listing.incomplete", problem=problem) for problem in problems]
    return "\n".join(map(printable, lines))


def render_left_out(directories: Sequence[Path]) -> list[str]:
    """Return lines that name directories of dumps which stood there before the run.

    Of many, the first ones, and how many more there are.
    """
    shown = directories[:_MOST_LEFT_OUT]
    lines = [say("listing.left_out", path=str(path)) for path in shown]
    if more := len(directories) - len(shown):
        lines.append(say("listing.more_left_out", number=more))
    return [printable(line) for line in lines]


def render_stops(stops: Sequence[Stop]) -> list[str]:
    """Return a line for each rank that did not finish: where it stopped, and of what."""
    return [
        printable(say("listing.rank_stopped", rank=stop.rank, stopped=stopped_at(stop, (0,))))
        for stop in stops
    ]


def render_cost(cost: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Return what recording cost the rank that it cost most; no line if that is not known."""
    try:
        rank, worst = max(cost.items(), key=lambda item: item[1]["seconds"])
        accounts = worst["phases"].items()
        steps = max(account["steps"] for _, account in accounts)
        seconds, waited = float(worst["seconds"]), float(worst["waited_seconds"])
        written, behind = size(worst["bytes"]), float(worst["background_seconds"])
        lines = [
            say("listing.cost_seconds", seconds=seconds, waited=waited),
            say("listing.cost_written", size=written, seconds=behind),
            *(
                say(
                    "listing.cost_of_phase",
                    phase=_account(str(name)),
                    seconds=float(account["seconds"]["mean"]),
                )
                for name, account in accounts
            ),
            *(render_graph_cost(worst["graphs"]) if "graphs" in worst else ()),
        ]
        return [say("listing.cost", rank=rank, steps=steps), *(f"  {line}" for line in lines)]
    except (KeyError, TypeError, ValueError, AttributeError):  # none, or not as we write it
        return []


def render_times(times: Sequence[StepTimes]) -> list[str]:
    """Return how long the steps of a rank took, and its phases; of several steps the mean."""
    if not times:
        return []
    count, first = len(times), times[0]
    seconds = sum(step.seconds for step in times) / count
    of = {"rank": first.rank, "seconds": seconds}
    lines = [
        say("listing.times_of_step", step=first.step, **of)
        if count == 1
        else say("listing.times", steps=count, **of)
    ]
    phases: dict[str, tuple[int, float]] = {}
    for step in times:
        for phase, (openings, took) in step.of_phases().items():
            before = phases.get(phase, (0, 0.0))
            phases[phase] = before[0] + openings, before[1] + took
    lines += [
        "  "
        + say(
            "listing.times_of_phase",
            phase=shortened(phase, _LONGEST_VALUE),
            seconds=took / count,
            openings=f"{openings / count:.3g}",
        )
        for phase, (openings, took) in phases.items()
    ]
    return [printable(line) for line in lines]


def _account(name: str) -> str:
    """Return what is charged is called: a phase, or key data."""
    return say("listing.key_data") if name == KEY_DATA else printable(name)


def render_graph_cost(graphs: Mapping[str, Any]) -> list[str]:
    """Return what probes in compiled graphs cost beside what is charged to the phases."""
    probed, plain, host = (graphs[k] for k in ("with_probes", "without_probes", "host_functions"))
    return [
        say(
            "listing.cost_compiling",
            probed=probed["compiled"],
            probed_seconds=float(probed["seconds"]),
            plain=plain["compiled"],
            plain_seconds=float(plain["seconds"]),
        ),
        say(
            "listing.cost_host",
            calls=host["calls"],
            seconds=float(host["seconds"]),
            size=size(host["bytes"]),
        ),
    ]


def header(what: str) -> tuple[str, ...]:
    """Return what the columns of a list are called."""
    return tuple(say(f"listing.columns_of_{what}").split("\t"))


def in_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of one length as lines whose columns stand below each other."""
    widths = [max(width_of(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(padded(cell, width) for cell, width in zip(row, widths)).rstrip() for row in rows
    ]


def render_entries(entries: Sequence[Entry]) -> str:
    """Return one line an entry: of one step and rank in time, with what its output looks like.

    Of several steps or ranks, one line a name, with the steps and ranks that have it.
    """
    if len({(entry.step, entry.rank) for entry in entries}) > 1:
        named: dict[str, list[Entry]] = {}
        for entry in entries:
            named.setdefault(entry.name, []).append(entry)
        rows = [header("entries")]
        rows += [
            (
                printable(name),
                spans(sorted({entry.step for entry in held})),
                spans(sorted({entry.rank for entry in held})),
                str(sum(len(entry.records) for entry in held)),
            )
            for name, held in named.items()
        ]
        hint = say("listing.hint_entries")
        return "\n".join(map(printable, [*in_columns(rows), hint]))
    if not entries:
        return say("listing.no_entry")
    where = say("listing.in_time", step=entries[0].step, rank=entries[0].rank)
    table = [header("entries_in_time")]
    for entry in entries:
        tensors = [r.leaf for r in entry.records if r.io == "output" and r.leaf.is_tensor]
        token = "" if entry.token is None else str(entry.token)
        head = (printable(entry.name), token, str(len(entry.records)))
        table.append((*head, *_output(tensors)))
    return "\n".join(map(printable, [where, *in_columns(table)]))


def _output(tensors: Sequence[Leaf]) -> tuple[str, str, str, str]:
    """Return dtype and shape, norm, NaN and Inf of an entry's first output, and how many follow."""
    if not tensors:
        return "", "", "", ""
    first, more = tensors[0], len(tensors) - 1
    what = _kind(first)
    if more:
        what = say("listing.and_more", what=what, more=more)
    return what, _number(first.norm), *_not_finite(tensors)


def _not_finite(tensors: Sequence[Leaf]) -> tuple[str, str]:
    """Return the numbers of NaN and of Inf; "" where nobody counted them."""
    nan = [leaf.nan_count for leaf in tensors if leaf.nan_count is not None]
    inf = [leaf.inf_count for leaf in tensors if leaf.inf_count is not None]
    return str(sum(nan)) if nan else "", str(sum(inf)) if inf else ""


def render_saves(saves: Sequence[KeyDatum], records: Iterable[FoundRecord]) -> str:
    """Return one line a save of a key: its place, what it is, its statistics or its text.

    Args:
        records: the same as records, which say what cannot be read.
    """
    unreadable = {
        (found.step, found.rank, found.micro_step): say("listing.unreadable", why=found.unreadable)
        for found in records
        if found.unreadable is not None
    }
    rows: list[tuple[str, ...]] = [(*header("saves"), "")]
    for save in saves:
        place = (save.step, save.rank, save.micro_step)
        *known, text = _save([record.leaf for record in save.records])
        rows.append((*map(str, place), *known, printable(unreadable.get(place, text))))
    kept = [i for i in range(len(rows[0])) if any(row[i] for row in rows[1:])]
    lines = in_columns([[row[i] for i in kept] for row in rows])
    hint = say("listing.hint_saves")
    return "\n".join(map(printable, [*lines, hint]))


def _save(leaves: Sequence[Leaf]) -> tuple[str, ...]:
    """Return what a save is, max, min, mean, norm, NaN, Inf and text; of several: of all."""
    if not leaves:
        return (say("listing.nothing"), *[""] * 7)
    first, several = leaves[0], len(leaves) > 1
    more = ", …" if len({_kind(leaf) for leaf in leaves}) > 1 else ""
    what = (f"{len(leaves)} × {_kind(first)}" if several else _kind(first)) + more
    if first.type == "str" or not first.is_tensor:
        text = str(first.value)
        shown = text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"
        return (what, *[""] * 6, shown)
    tensors = [leaf for leaf in leaves if leaf.is_tensor]
    largest = _number(_edge([leaf.max for leaf in tensors], max))
    least = _number(_edge([leaf.min for leaf in tensors], min))
    middle = ("", "") if several else (_number(first.mean), _number(first.norm))
    return (what, largest, least, *middle, *_not_finite(tensors), "")


def _edge(values: Iterable[Any], choose: Any) -> Any:
    """Return the largest or smallest of some numbers; NaN where one is NaN, None without any."""
    known = [value for value in values if isinstance(value, (int, float))]
    odd = [value for value in known if value != value]
    return odd[0] if odd else choose(known, default=None)


def _kind(leaf: Leaf) -> str:
    """Return a value's dtype and shape, or its type."""
    if leaf.type == "str":
        return say("listing.text")
    if leaf.dtype is None:
        return printable(shortened(leaf.type, _LONGEST_VALUE))
    return f"{printable(shortened(leaf.dtype, _LONGEST_VALUE))} {list(leaf.shape or ())}"


def _number(value: Any) -> str:
    """Return a number in at most six significant digits; an integer as it is."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else printable(shortened(value))


def render_records(records: Sequence[FoundRecord]) -> str:
    """Return each record's place, statistics and first values."""
    lines = []
    for found in records:
        leaf = found.record.leaf
        phase = found.phase or f"micro_step {found.micro_step}"
        argument = f" ({printable(found.record.argument)})" if found.record.argument else ""
        where = say("listing.of_record", step=found.step, phase=phase, rank=found.rank)
        lines.append(f"{printable(found.record.name)}{argument}  {where}")
        if leaf.is_tensor:
            known = leaf.nan_count is not None  # msprobe does not count
            counts = f"  NaN {leaf.nan_count}, Inf {leaf.inf_count}" if known else ""
            lines.append(f"  {shortened(leaf.dtype)} {list(leaf.shape or ())}{counts}")
            of = (("max", leaf.max), ("min", leaf.min), ("mean", leaf.mean), ("norm", leaf.norm))
            lines.append("  " + "  ".join(f"{name} {shortened(value)}" for name, value in of))
            if leaf.type == "str":
                lines.append(f"  {say('listing.text_is', value=repr(leaf.value))}")
            if leaf.fingerprint is not None:
                lines.append(f"  {shortened(leaf.fingerprint)}")
        else:
            lines.append(f"  {leaf.type} {leaf.value!r}")
        if found.values is not None:
            lines.append(f"  {say('listing.first_values', values=str(found.values))}")
        if found.unreadable is not None:
            why = printable(found.unreadable)
            lines.append(f"  {say('listing.unreadable', why=why)}")
    return "\n".join(map(printable, lines))
