"""What a run holds (`show`), and how much room a recording takes (`estimate`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mindrlhf_msprobe.report.messages.en.words import counted, spans


def _held(what: str, numbers: Sequence[int]) -> str:
    """Return sorted numbers of a thing as a sentence names them: steps 0 to 2 and 5."""
    if not numbers:
        return f"no {what}"
    parts: list[str] = []
    for span in spans(numbers).split(", "):
        first, _, last = span.partition("-")
        if last and int(last) == int(first) + 1:
            parts += [first, last]
        else:
            parts.append(f"{first} to {last}" if last else first)
    listed = " and ".join(part for part in (", ".join(parts[:-1]), parts[-1]) if part)
    return f"{what}{'s' * (len(numbers) > 1)} {listed}"


def _changes(first: str | None, then: Sequence[tuple[int, str]], left: int) -> str:
    """Return a setting's values in time; `left` changes before the last one are not listed."""
    parts = [f"from step {step} on {value}" for step, value in then]
    if left:
        parts.insert(-1, f"… {left} more changes …")
    return ", ".join(([] if first is None else [first]) + parts)


def _inside(cell: str | None) -> str:
    if cell is None:
        return ""
    return f" inside {cell}" if cell else " outside every cell"


TEXTS: dict[str, Any] = {
    "without": "Not held: {what}",
    "block": "{head}:",
    "states": lambda state: str(state),
    "columns_of_run": "\tsteps\tranks\tsaves/entries\trecords\tsize",
    "columns_of_entries": "entry\tsteps\tranks\trecords",
    "columns_of_entries_in_time": "entry\ttoken\trecords\toutput\tnorm\tNaN\tInf",
    "columns_of_saves": "step\trank\tmicro-step\twhat\tmax\tmin\tmean\tnorm\tNaN\tInf",
    "columns_of_estimate": "\trank\ttensors\tdistinct\ta step",
    "key_data": "key data",
    "incomplete": "Incomplete: {problem}",
    "left_out": "Left out: {path}: it stood there before this run",
    "more_left_out": "Left out: and {number} more that stood there before this run",
    "rank_stopped": "Rank {rank} {stopped}",
    "cost": "Cost of recording, rank {rank}, {steps} step(s):",
    "cost_seconds": "{seconds:.2f} s of the training's time, of which {waited:.2f} s waiting "
    "for room",
    "cost_written": "{size} written in {seconds:.2f} s behind it",
    "cost_of_phase": "{phase}: {seconds:.3f} s a step",
    "cost_compiling": "compiling {probed} graph(s) with probes: {probed_seconds:.2f} s; {plain} of "
    "them also without probes: {plain_seconds:.2f} s",
    "cost_host": "host functions of graphs: {calls} calls, {seconds:.2f} s, {size} handed over; "
    "copies made inside the graph are not contained",
    "times": "Time of a step, rank {rank}, mean of {steps} steps: {seconds:.2f} s",
    "times_of_step": "Time of step {step}, rank {rank}: {seconds:.2f} s",
    "times_of_phase": "{phase}: {seconds:.3f} s, opened {openings} time(s)",
    "of_run": "{path}: {state}, {size}",
    "hint_entries": "With --step N (and --rank N): in the order of time, with what each entry "
    "returned.",
    "code_of": lambda entry, cell, phases, steps, ranks: (
        f"{entry}{_inside(cell)}  step {steps}, {phases}, rank {ranks}"
    ),
    "code_called": lambda line, cell: f"called{_inside(cell)} from {line}",
    "code_inside": lambda cell: f"called{_inside(cell)}",
    "attributes": "attributes: {attributes}",
    "code_in": "{place} in {function}",
    "code_caller": "called from {line}",
    "code_missing": "{file} is not at hand here: this is what was recorded",
    "code_changed": "line {line} of {file} is another one by now: this is what was recorded",
    "code_unknown": "no line of code was recorded with it",
    "hint_saves": "With --step N: each record's statistics and first values.",
    "no_entry": "no entry that could be read",
    "in_time": "step {step}, rank {rank}, in the order of time:",
    "and_more": "{what} and {more} more",
    "unreadable": "cannot be read: {why}",
    "nothing": "nothing",
    "text": "text",
    "text_is": "text {value}",
    "first_values": "first values {values}",
    "of_record": "step {step}, {phase}, rank {rank}",
    "generation": "Generation in {phase}, from step {step} on",
    "of_ranks": ", rank(s) {ranks}",
    "changes": _changes,
    "no_settings": "no settings",
    "states_in": "{names} in step(s) {steps}",
    "states_noted": "Random states noted: {states}",
    "estimated": lambda step_size, steps, ranks, total, free, path: (
        f"A step of a rank: {step_size}. {counted(steps, 'step')} of {counted(ranks, 'rank')}: "
        f"{total}; {free} are free at {path}."
    ),
    "does_not_fit": "This does not fit. Record fewer steps (step_start, step_end), phases, ranks "
    "or cells (include, exclude), or choose a dump_path with more room.",
    "not_certain": "Not certain: {remark}",
    "missing_ranks": "recorded nothing here: rank(s) {ranks} of the job",
    "holds_none": lambda path, what, number, held: (
        f"{path} holds no {what} {number}; it holds {_held(what, held)}."
    ),
}
