"""The answer of a comparison, on the console and in summary.xlsx."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from mindrlhf_msprobe.report.messages.en.words import counted, few, ordinal, spans
from mindrlhf_msprobe.report.messages.lists import clauses, either


def _scope(steps: int, ranks: int, phases: int) -> str:
    parts = [counted(steps, "step"), counted(ranks, "rank")]
    return ", ".join(parts + ([counted(phases, "phase")] if phases else []))


def _identical(compared: int, scope: str, non_finite: str) -> str:
    agree = "agrees" if compared == 1 else "agree"
    return f"IDENTICAL: {_records(compared)} of {scope} {agree} bit for bit{non_finite}."


def _within(compared: int, close: int, scope: str, non_finite: str) -> str:
    which = f"agree, {close} of them" if compared > 1 else "agrees"
    return (
        f"WITHIN TOLERANCE: {_records(compared)} of {scope} {which} within the tolerance or by "
        f"statistics only{non_finite}."
    )


def _unread(compared: int, scope: str) -> str:
    agree = "agrees" if compared == 1 else "agree"
    return (
        f"INCOMPARABLE: {_records(compared)} of {scope} {agree}, but not all that was recorded "
        f"could be read, so the runs cannot be called the same:"
    )


def _non_finite(
    records: int, several: bool, step: int | None, phase: str | None, rank: int | None, record: str
) -> str:
    where = ", ".join(filter(None, (f"step {step}", phase, f"rank {rank}")))
    hold = "hold" if records > 1 else "holds"
    which = f"{records} of them {hold}" if several else "it holds"
    return f"; {which} NaN or Inf on both sides, first at {where}: {record}"


def _max_abs(absolute: float, relative: float | None) -> str:
    behind = "" if relative is None else f", max rel {relative:.2g}"
    return f"max abs {absolute:.2g}{behind}"


def _agreed_before(agreed: str, last: str | None) -> str:
    return f"Before it: {agreed}" + (f" The last: {last}" if last else "")


def _look_closer(unless: str, one_run: bool, size: str) -> str:
    begin = {
        "": "Look closer",
        "meant": "If that is meant to differ, look closer",
        "unexplained": "If that does not explain it, look closer",
    }[unless]
    again = "it again, into another" if one_run else "both again, each into its own"
    return f"{begin}: record {again} dump_path{size}, with"


def _chain(where: str, key: str, chain: str) -> str:
    return f"After it, in {where}{key}: {chain}"


def _not_compared(records: int, only_in: str, reason: str) -> str:
    if only_in == "both":
        return f"{records} {reason}."
    return f"{_records(records)} only in {only_in} — {reason}."


def _summary(scope: str, compared: int, seconds: float | None, counts: Sequence[str]) -> str:
    took = "" if seconds is None else f" in {seconds:.1f} s"
    return f"{scope} · {_records(compared)}{took}: {', '.join(counts) or 'none'}"


def _records(number: int) -> str:
    return counted(number, "record")


def _place(
    step: int, phase: str | None, rank: int, micro_step: int | None, call: int | None
) -> str:
    occasion = "" if micro_step is None else f"micro-step {micro_step}"
    if call is not None:
        occasion = f"{ordinal(call)} call of this phase"
    return ", ".join(filter(None, (f"step {step}", phase, f"rank {rank}", occasion)))


def _parted(
    ranks: Sequence[int],
    first: bool,
    step: int,
    phase: str | None,
    micro_step: int | None,
    record: str,
) -> str:
    verb = "diverges" if len(ranks) == 1 else "diverge"
    when = f"{verb} first" if first else f"{verb} later"
    micro = f"micro-step {micro_step}" if micro_step else None
    where = ", ".join(filter(None, (f"step {step}", phase, micro)))
    return f"{_ranks(ranks)} {when}, at {where}: {record}"


def _agreeing_ranks(ranks: Sequence[int]) -> str:
    return f"{_ranks(ranks)} {'agrees' if len(ranks) == 1 else 'agree'} throughout"


def _ranks(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {spans(sorted(ranks))}"


def _stopped(state: str, step: int, phase: str | None, ranks: Sequence[int], error: str) -> str:
    place = f"step {step}" + (f", {phase}" if phase else "")
    place += "" if tuple(ranks) == (0,) else f", rank{'s' * (len(ranks) > 1)} {spans(ranks)}"
    what = {
        "running": f"still runs, in {place}",
        "killed": f"was killed in {place}, without a word",
        "interrupted": f"ended inside {place}, without close()",
    }.get(state, f"stopped in {place}")
    return f"{what}: {error}" if error else what


def _before(records: int, phases: int, steps: int, step: int) -> str:
    earlier = _earlier_steps(steps, step)
    if not records:
        return f"{earlier} {'agrees' if steps == 1 else 'agree'}." if earlier else ""
    of_phases = f"{counted(phases, 'phase')} and " if phases else ""
    verb = "agree" if of_phases or records > 1 else "agrees"
    of_records = f"{_records(records)} of step {step} {verb}"
    return f"{of_phases}{of_records}{f', and {earlier}' if earlier else ''}."


def _earlier_steps(steps: int, step: int) -> str:
    if not steps:
        return ""
    if steps != step:  # some were not recorded, or the first is not step 0
        return f"all of {counted(steps, 'earlier step')}"
    return "all of step 0" if step == 1 else f"all of steps 0 to {step - 1}"


_REPEATABLE = "record the same configuration twice to see whether the training is repeatable"


def _earlier(
    path: str,
    relation: str,
    status: str,
    named: str,
    step: int | None,
    phase: str | None,
    all_cells: bool,
    agreed: int,
) -> str:
    place = ", ".join(filter(None, [f"step {step}", phase]))
    named = f"{named} at {place}"
    looked = "all cells were recorded then, and " if all_cells else ""
    before = f"{agreed} records of that step before it agreed" if agreed else ""
    said = {
        "same": f"it named the same place; {looked}{before}".rstrip("; "),
        "inside": f"it named {named}, which comes of this",
        "before": f"it named {named}; this lies in another phase of that step",
        "elsewhere": f"it named another place, {named}: {_REPEATABLE}",
        "new": f"it ended {status}: what differs now was not recorded then, or {_REPEATABLE}",
        "not_seen": f"it named {named}, and nothing that was recorded now differs: {_REPEATABLE}",
        "agreed": f"it ended {status}, too",
    }
    return f"the earlier comparison {path}: {said[relation]}"


def _size_of_next(size: str, one_run: bool, estimated: bool) -> str:
    about = f"about {size}{'' if one_run else ' each'}, of a rank"
    return f" ({about}{', estimated from its cells' * estimated})"


def _weights(compared: int, different: int, only_in_a: int, only_in_b: int) -> str:
    if compared and not (different or only_in_a or only_in_b):
        return f"all {counted(compared, 'parameter')} agree bit for bit"
    if not (compared or only_in_a or only_in_b):
        return "nothing to compare"
    parts = [f"{different} of {counted(compared, 'parameter')} differ"]
    parts += [f"{only_in_a} only in A"] if only_in_a else []
    parts += [f"{only_in_b} only in B"] if only_in_b else []
    return ", ".join(parts)


def _difference(section: str, name: str, a: str, b: str) -> str:
    section = section.replace("_", " ")
    return f"{section}: {name}: {a} in A, {b} in B" if name else f"{section}: {a} in A, {b} in B"


_either = partial(either, word="or")
_KEY = clauses(
    " ({clauses})",
    "; ",
    {
        "absolute": "max abs error",
        "relative": "× relative distance, the first divergence being ×1",
    },
)
_COMPARED_ONLY = clauses(
    "compared: {clauses}",
    "; ",
    {
        "steps": "steps {}",
        "keys": "keys {}",
        "include": "records that match {}",
        "exclude": "no record that matches {}",
        "common": "what both runs have (--common)",
        "first_only": "up to the first divergence (--first-only)",
    },
    {"keys": ", ".join, "include": _either, "exclude": _either},
)
_LEFT_OUT = clauses(
    "left out: {clauses}",
    "; ",
    {
        "steps": "steps {}",
        "cells": "all cells",
        "keys": "keys {}",
        "steps_after": "steps {}, which come after it",
    },
    {"steps": spans, "keys": few, "steps_after": spans},
)

TEXTS: dict[str, Any] = {
    "scope": _scope,
    "identical": _identical,
    "within_tolerance": _within,
    "unread": _unread,
    "restore": (
        "Restore these files from where they were copied, or record again, and compare once more."
    ),
    "incomparable": (
        "INCOMPARABLE: the two runs have nothing in common that could be compared. Check that "
        "both recorded the same phases, steps and keys, and that these are the right two."
    ),
    "diverged": "DIVERGED at {place}",
    "non_finite": _non_finite,
    "agree_non_finite": "Records that agree{non_finite}.",
    "more": "… {number} more",
    "in_summary": " in summary.xlsx",
    "in_verdict": " in {file}",
    "cause": "cause: {cause}. {explanation}",
    "max_abs": _max_abs,
    "inside": "inside: {words}",
    "source": "source: {source}",
    "agreed_before": _agreed_before,
    "check_first": "Check this first: it differs between the runs and can have this effect",
    "meant": (
        "If that is meant to differ: next_step in {file} says what to record to look closer."
    ),
    "look_closer": _look_closer,
    "compare_after": "and compare them with --after {output}",
    "chain": _chain,
    "chain_key": _KEY,
    "of_step": "step {step}",
    "spread": "{place}{size} ({different} of {compared} records)",
    "ranks": "Ranks: {line}",
    "more_places": "… {number} more places",
    "note": "Note: {line}",
    "not_compared": "Not compared: {line}",
    "incomplete": "Incomplete: {line}",
    "gap": _not_compared,
    "tolerance": "Tolerance: {rules}",
    "rule_use": lambda rule, records, passed: (
        f"{rule}: {_records(records)}, {passed} agree only by it"
    ),
    "sides": "Baseline (A): {a}; under test (B): {b}",
    "tables": "Tables: {file}",
    "tables_and_more": "Tables: {file} and {more} more",
    "machine_readable": "Machine-readable: {file}",
    "summary": _summary,
    "place": _place,
    "parted": _parted,
    "agreeing_ranks": _agreeing_ranks,
    "stopped": _stopped,
    "stopped_run": "{run} {stopped}",
    "more_stops": lambda number: f"… and {counted(number, 'more place')} where ranks stopped",
    "before": _before,
    "earlier": _earlier,
    "compared_only": _COMPARED_ONLY,
    "left_out": _LEFT_OUT,
    "size_of_next": _size_of_next,
    "size_of_next_unknown": (
        " (how much that takes is not known: after one step of it, mindrlhf-msprobe estimate "
        "says it)"
    ),
    "bisection": (
        "All cells that may be to blame would take about {size}: this is one round of a bisection "
        "over the layers; the comparison of it says which to record next."
    ),
    "weights": _weights,
    "before_any_tensor": "Before any tensor, these differ:",
    "load_checkpoint": "{weights}: look at the checkpoint that was loaded",
    "initial_weights": "initial weights of {role}: {weights} ({names})",
    "difference": _difference,
    "withheld": "<withheld: it could be a secret>",
    "another_withheld": "<withheld: it could be a secret>, another value",
    "other_on_each_rank": "other values on each rank",
    "no_value": "nothing",
    "comparing": "Comparing",
    "unit_records": "records",
}
