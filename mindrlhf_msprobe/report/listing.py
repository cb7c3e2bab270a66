"""What a run holds: entries, key data, settings, and the code behind."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.printable import cut, shortened, size, spans
from mindrlhf_msprobe.report.answer import Code, Lines, Rows, capped
from mindrlhf_msprobe.report.comparison import stopped_at
from mindrlhf_msprobe.report.messages import say
from mindrlhf_msprobe.storage.code_lines import CodeLine, FoundCode
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.manifest import random_states
from mindrlhf_msprobe.storage.manifest.run_file import Generation, RunFile, Stop, timelines
from mindrlhf_msprobe.storage.operators import in_words
from mindrlhf_msprobe.storage.reading.estimate import KEY_DATA, Estimate
from mindrlhf_msprobe.storage.reading.inventory import FoundRecord, Holding, file_sizes
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import Entry
from mindrlhf_msprobe.storage.step_lines import StepTimes

_MOST_LEFT_OUT = 20  # directories that are named
_LONGEST_VALUE = 40  # characters of a text that stand in a row
_LONGEST_NAMES = 400  # characters of all names in a row
_CALLERS = 8
_LINE = 98  # characters
_CHANGES = 3  # of one setting
_GENERATORS = {"numpy_state": "numpy", "random_state": "Python", "mindspore_state": "MindSpore"}


def render_holdings(
    path: Path,
    state: str,
    holdings: Sequence[Holding],
    problems: Sequence[str],
    cost: Mapping[int, Mapping[str, Any]] | None = None,
) -> Lines:
    """Return the list of a run's phases and keys, and what recording them cost."""
    rows = [
        (
            *(holding.name, spans(holding.steps), spans(holding.ranks)),
            *(str(holding.count), str(holding.records), size(holding.size)),
        )
        for holding in holdings
    ]
    whole = sum(holding.size for holding in holdings)
    return [
        say("listing.of_run", path=str(path), state=state, size=whole),
        Rows(header("run"), rows),
        *render_cost(cost or {}),
        *(say("console.incomplete", line=problem) for problem in problems),
    ]


def render_summary(run: Run, rank: int) -> Lines:
    """Return what one rank recorded, what of it was lost, and what to do next."""
    layers = {phase: run.directories(rank=rank, phase=phase) for phase in run.phases}
    data = {key: run.directories(rank=rank, key=key) for key in run.keys}
    directories = [one for of in (layers, data) for each in of.values() for one in each]
    losses = [str(loss) for loss in run.losses if loss.params["rank"] == rank]
    stop = run.stop_of(rank)
    lost = losses + render_stops([] if stop is None else [stop])
    at = {"path": str(run.path), "rank": rank}
    steps = sorted(step for step, of in run.places if of == rank) if directories else []
    if not steps:
        return [say("listing.holds_nothing", **at), lost or [say("listing.nothing_came")]]
    written = file_sizes(directories)[1]
    names = {"listing.holds_layers": layers, "listing.holds_keys": data}
    held = {code: [name for name, there in of.items() if there] for code, of in names.items()}
    under = [
        *(
            say(code, names=shortened(", ".join(found), _LONGEST_NAMES))
            for code, found in held.items()
            if found
        ),
        *([] if losses else [say("listing.nothing_lost")]),
        *lost,
        say("listing.next", path=shlex.quote(str(run.path))),
    ]
    return [say("listing.holds", steps=steps, size=written, **at), under]


def render_left_out(directories: Sequence[Path]) -> list[str]:
    """Return lines that name directories of dumps which stood there before the run.

    Of many, the first ones, and how many more there are.
    """
    lines = (say("listing.left_out", path=str(path)) for path in directories)
    return capped(lines, _MOST_LEFT_OUT)


def render_stops(stops: Sequence[Stop]) -> list[str]:
    """Return a line for each rank that did not finish: where it stopped, and of what."""
    return [say("listing.rank_stopped", stop, stopped=stopped_at(stop, (0,))) for stop in stops]


def render_cost(cost: Mapping[int, Mapping[str, Any]]) -> Lines:
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
        ]
        if graphs := worst.get("graphs"):  # beside what is charged to the phases
            parts = ("with_probes", "without_probes", "host_functions")
            probed, plain, host = (graphs[part] for part in parts)
            compiled = {"probed": probed["compiled"], "plain": plain["compiled"]}
            compiled["probed_seconds"] = float(probed["seconds"])
            compiled["plain_seconds"] = float(plain["seconds"])
            called = {"calls": host["calls"], "seconds": float(host["seconds"])}
            lines.append(say("listing.cost_compiling", **compiled))
            lines.append(say("listing.cost_host", size=size(host["bytes"]), **called))
        return [say("listing.cost", rank=rank, steps=steps), lines]
    except (KeyError, TypeError, ValueError, AttributeError):  # none, or not as we write it
        return []


def render_times(times: Sequence[StepTimes]) -> Lines:
    """Return how long the steps of a rank took, and its phases; of several steps the mean."""
    if not times:
        return []
    count, first = len(times), times[0]
    seconds = sum(step.seconds for step in times) / count
    of: dict[str, Any] = {"rank": first.rank, "seconds": seconds}
    phases: dict[str, tuple[int, float]] = {}
    for step in times:
        for phase, (openings, took) in step.of_phases().items():
            before = phases.get(phase, (0, 0.0))
            phases[phase] = before[0] + openings, before[1] + took
    lines = [
        say(
            "listing.times_of_phase",
            phase=shortened(phase, _LONGEST_VALUE),
            seconds=took / count,
            openings=f"{openings / count:.3g}",
        )
        for phase, (openings, took) in phases.items()
    ]
    of["step"] = first.step if count == 1 else None
    return [say("listing.times", steps=count, **of), lines]


def _account(name: str) -> str:
    """Return what takes room or time is called: a phase, or key data."""
    return say("console.key_data") if name == KEY_DATA else name


def header(what: str) -> tuple[str, ...]:
    """Return what the columns of a list are called."""
    return tuple(say(f"listing.columns_of_{what}").split("\t"))


def render_entries(entries: Sequence[Entry]) -> Lines:
    """Return one line an entry: of one step and rank in time, with what its output looks like.

    Of several steps or ranks, one line a name, with the steps and ranks that have it.
    """
    if len({(entry.step, entry.rank) for entry in entries}) > 1:
        named: dict[str, list[Entry]] = {}
        for entry in entries:
            named.setdefault(entry.name, []).append(entry)
        rows = [
            (
                name,
                spans(sorted({entry.step for entry in held})),
                spans(sorted({entry.rank for entry in held})),
                str(sum(len(entry.records) for entry in held)),
            )
            for name, held in named.items()
        ]
        return [Rows(header("entries"), rows), say("listing.hint_entries")]
    if not entries:
        return [say("listing.no_entry")]
    where = say("listing.in_time", step=entries[0].step, rank=entries[0].rank)
    table = []
    for entry in entries:
        tensors = [r.leaf for r in entry.records if r.io == "output" and r.leaf.is_tensor]
        token = "" if entry.token is None else str(entry.token)
        what = norm = nan = inf = ""  # of its first output, and how many follow
        if tensors:
            what, norm = _kind(tensors[0]), _number(tensors[0].norm)
            nan, inf = _not_finite(tensors)
        if len(tensors) > 1:
            what = say("listing.and_more", what=what, more=len(tensors) - 1)
        table.append((entry.name, token, str(len(entry.records)), what, norm, nan, inf))
    return [where, Rows(header("entries_in_time"), table)]


def _not_finite(tensors: Sequence[Leaf]) -> tuple[str, str]:
    """Return the numbers of NaN and of Inf; "" where nobody counted them."""
    nan = [leaf.nan_count for leaf in tensors if leaf.nan_count is not None]
    inf = [leaf.inf_count for leaf in tensors if leaf.inf_count is not None]
    return str(sum(nan)) if nan else "", str(sum(inf)) if inf else ""


def render_saves(saves: Sequence[KeyDatum], records: Iterable[FoundRecord]) -> Lines:
    """Return one line a save of a key: its place, what it is, its statistics or its text.

    Args:
        records: the same as records, which say what cannot be read.
    """
    unreadable = {
        (found.step, found.rank, found.micro_step): say("unread.failed", why=found.unreadable)
        for found in records
        if found.unreadable is not None
    }
    rows = []
    for save in saves:
        place = (save.step, save.rank, save.micro_step)
        *known, text = _save([record.leaf for record in save.records])
        rows.append((*map(str, place), *known, unreadable.get(place, text)))
    names = (*header("saves"), "")
    kept = [i for i in range(len(names)) if any(row[i] for row in rows)]
    shown = [[row[i] for i in kept] for row in (names, *rows)]
    return [Rows(shown[0], shown[1:]), say("listing.hint_saves")]


def _save(leaves: Sequence[Leaf]) -> tuple[str, ...]:
    """Return what a save is, max, min, mean, norm, NaN, Inf and text; of several: of all."""
    if not leaves:
        return (say("console.no_value"), *[""] * 7)
    first, several = leaves[0], len(leaves) > 1
    more = ", …" if len({_kind(leaf) for leaf in leaves}) > 1 else ""
    what = (f"{len(leaves)} × {_kind(first)}" if several else _kind(first)) + more
    if first.type == "str" or not first.is_tensor:
        return (what, *[""] * 6, cut(str(first.value), _LONGEST_VALUE))
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
        return say("tables.text")
    if leaf.dtype is None:
        return shortened(leaf.type, _LONGEST_VALUE)
    return f"{shortened(leaf.dtype, _LONGEST_VALUE)} {list(leaf.shape or ())}"


def _number(value: Any) -> str:
    """Return a number in at most six significant digits; an integer as it is."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else shortened(value)


def render_records(records: Sequence[FoundRecord]) -> Lines:
    """Return each record's place, statistics and first values."""
    lines: list[Any] = []
    for found in records:
        leaf = found.record.leaf
        phase = found.phase or f"micro_step {found.micro_step}"
        argument = f" ({found.record.argument})" if found.record.argument else ""
        where = say("listing.of_record", step=found.step, phase=phase, rank=found.rank)
        under = []
        if leaf.is_tensor:
            known = leaf.nan_count is not None  # msprobe does not count
            counts = f"  NaN {leaf.nan_count}, Inf {leaf.inf_count}" if known else ""
            under.append(f"{shortened(leaf.dtype)} {list(leaf.shape or ())}{counts}")
            of = (("max", leaf.max), ("min", leaf.min), ("mean", leaf.mean), ("norm", leaf.norm))
            under.append("  ".join(f"{name} {shortened(value)}" for name, value in of))
            if leaf.type == "str":
                under.append(say("listing.text_is", value=repr(leaf.value)))
            if leaf.fingerprint is not None:
                under.append(shortened(leaf.fingerprint))
        else:
            under.append(f"{leaf.type} {leaf.value!r}")
        if found.values is not None:
            under.append(say("listing.first_values", values=str(found.values)))
        if found.unreadable is not None:
            under.append(say("unread.failed", why=found.unreadable))
        lines += [f"{found.record.name}{argument}  {where}", under]
    return lines


def render_estimate(found: Estimate) -> Lines:
    """Return a line a phase and rank, then what all steps and ranks take and what is free."""
    rows = [
        (_account(p.phase), str(p.rank), str(p.tensors), str(p.distinct), size(p.size))
        for p in found.phases
    ]
    return [
        Rows(header("estimate"), rows),
        say("listing.estimated", found),
        *([] if found.fits else [say("listing.does_not_fit")]),
        *(say("listing.not_certain", remark=remark) for remark in found.remarks),
    ]


def render_code(found: Sequence[FoundCode]) -> Lines:
    """Return where an entry was called, with the lines around where they are at hand."""
    lines: list[Any] = []
    for one in found:
        where = say("listing.code_of", one)
        lines += [where, [_in_words(line, text=False) for line in one.callers[:1]]]
        callers = one.callers[1 : _CALLERS + 1]
        called = [say("listing.code_caller", line=_in_words(line)) for line in callers]
        under = _attributes(one)
        width = len(str(max(one.source, default=0)))
        for number, text in one.source.items():
            mark = ">" if number == one.callers[0].line else " "
            under.append(Code(f"{mark} {number:>{width}}  {text.expandtabs(4)}".rstrip()))
        if not one.source and one.callers and one.callers[0].text:
            under.append(Code(f"> {one.callers[0].line}  {one.callers[0].text}"))
        lines.append([*under, *([] if one.why is None else [str(one.why)]), *called])
    return lines


def called_from(found: Sequence[FoundCode]) -> list[str]:
    """Return where an entry was called, in one line for each of the places."""
    lines = []
    for one in found:
        if one.callers:
            line = _in_words(one.callers[0])
            lines.append(say("listing.code_called", one, line=line))
        elif one.cell is not None:
            lines.append(say("listing.code_inside", one))
        lines += _attributes(one)
    return list(dict.fromkeys(lines))


def _attributes(one: FoundCode) -> list[str]:
    if not one.attributes:
        return []
    given = ", ".join(f"{name}={in_words(value)}" for name, value in one.attributes.items())
    return [say("listing.attributes", attributes=given)]


def _in_words(line: CodeLine, *, text: bool = True) -> str:
    """Return a line of code as one line: `net.py:42 in construct: h = f(h)`."""
    shown = f"{line.file}:{line.line}"
    if line.function:
        shown = say("listing.code_in", place=shown, function=line.function)
    return f"{shown}: {line.text}" if text and line.text else shown


def render_generation(files: Iterable[RunFile], rank: int | None = None) -> Lines:
    """Return what each phase generated with, a line a setting that changed, and random states.

    Ranks that say the same stand together.

    Args:
        files: the manifests of all ranks.
        rank: of this one alone; None for all.
    """
    chosen = [file for file in files if rank is None or file.rank in (None, rank)]
    lines: list[Any] = []
    blocks: dict[tuple[str, tuple[str, ...]], list[int | None]] = {}  # head and lines → ranks
    for file in chosen:
        for attempt in (file, *file.attempts):
            for phase, found in attempt.generation.items():
                if found.step is not None:
                    head = say("listing.generation", found, phase=phase)
                    blocks.setdefault((head, tuple(_settings(found))), []).append(file.rank)
    for file in chosen:
        # Of which generators the states are noted, and in which steps.
        steps: dict[tuple[int, ...], list[str]] = {}
        for name, noted in random_states.by_step(file.random_states).items():
            if known := sorted(n for n, one in noted.items() if one != random_states.UNKNOWN):
                steps.setdefault(tuple(known), []).append(_GENERATORS.get(name, name))
        parts = [
            say("listing.states_in", names=", ".join(of), steps=at) for at, of in steps.items()
        ]
        if parts:
            states = say("listing.states_noted", states="; ".join(parts))
            blocks.setdefault((states, ()), []).append(file.rank)
    for (head, inner), ranks in blocks.items():
        numbers = sorted({number for number in ranks if number is not None})
        some = numbers and len(numbers) < len(chosen)
        whose = say("listing.of_ranks", ranks=numbers) if some else ""
        lines += [say("listing.block", head=head + whose) if inner else head + whose, [*inner]]
    return lines


def _settings(found: Generation) -> list[str]:
    """Return the settings that stayed, those that are None left out, and those that changed."""
    changed = timelines(found.changes, lambda change: str(change.name))
    stayed = [
        f"{name}={_value(value)}"
        for name, value in found.settings.items()
        if value is not None and name not in changed
    ]
    lines = textwrap.wrap(", ".join(stayed), _LINE, break_on_hyphens=False)
    for name, changes in changed.items():
        first = _value(found.settings[name]) if name in found.settings else None
        then = [(step, _value(value)) for step, value in changes]
        left = max(0, len(then) - _CHANGES)
        then = [*then[: _CHANGES - 1], then[-1]] if left else then
        lines.append(f"{name}: {say('listing.changes', first=first, then=then, left=left)}")
    return lines or [say("listing.no_settings")]


def _value(value: Any) -> str:
    return cut(json.dumps(value, ensure_ascii=False), _LONGEST_VALUE)
