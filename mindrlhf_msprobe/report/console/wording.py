"""What the console and summary.xlsx say in the same words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.findings import (
    Chosen,
    Divergence,
    Earlier,
    Relation,
    RuleUse,
    Stopped,
    Verdict,
    Weights,
    counted,
    ordinal,
)
from mindrlhf_msprobe.storage.manifest.ending import INTERRUPTED, KILLED, RUNNING, Stop

_REPEATABLE = "record the same configuration twice to see whether the training is repeatable"
_STOPS = 4  # places where runs stopped
_NAMED = 8  # keys that are named
_SHARED_WORDS = 5  # of lines that may be brought together


def place_of(first: Divergence) -> str:
    """Return where two runs part: step, phase, rank, and which time in the step it is."""
    parts = (f"step {first.step}", first.phase, f"rank {first.rank}", _time_of(first))
    return ", ".join(part for part in parts if part)


def _time_of(first: Divergence) -> str:
    """Return the micro-step or the call of the phase, "" where there is only one in the step."""
    occasion = first.occasion
    if occasion.times < 2:
        return ""
    if first.key is not None:
        return f"micro-step {occasion.number}"
    return f"{ordinal(occasion.number + 1)} call of this phase"


def ranks_parted(verdict: Verdict) -> list[str]:
    """Return which ranks part, those first that do so first, and which agree; [] of one rank."""
    if verdict.ranks < 2 or not verdict.parted:
        return []
    groups: dict[tuple[int, str | None, str, int | None], list[int]] = {}
    for rank in verdict.parted:
        place = rank.step, rank.phase, rank.record, rank.micro_step
        groups.setdefault(place, []).append(rank.rank)
    lines = []
    for number, ((step, phase, record, micro_step), ranks) in enumerate(groups.items()):
        parts = "parts" if len(ranks) == 1 else "part"
        when = f"{parts} first" if number == 0 else f"{parts} later"
        micro = f"micro-step {micro_step}" if micro_step else None
        where = ", ".join(part for part in (f"step {step}", phase, micro) if part)
        lines.append(f"{_ranks(ranks)} {when}, at {where}: {record}")
    if verdict.agreeing_ranks:
        agree = "agrees" if len(verdict.agreeing_ranks) == 1 else "agree"
        lines.append(f"{_ranks(verdict.agreeing_ranks)} {agree} throughout")
    return lines


def _ranks(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {spans(sorted(ranks))}"


def spans(numbers: Sequence[int]) -> str:
    """Return sorted numbers as spans: 0-2, 5."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def in_words(what: str, numbers: Sequence[int]) -> str:
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


def stop_lines(stops: Sequence[Stopped]) -> list[str]:
    """Return where the runs stopped that did not finish, in lines."""
    lines = [f"{stop.run} {stopped_at(stop, stop.ranks)}" for stop in stops[:_STOPS]]
    if len(stops) > _STOPS:
        lines.append(f"… and {counted(len(stops) - _STOPS, 'more place')} where ranks stopped")
    return lines


def stopped_at(stop: Stopped | Stop, ranks: Sequence[int]) -> str:
    """Return where a run stopped, as the rest of a sentence that begins with the run."""
    place = f"step {stop.step}" + (f", {stop.phase}" if stop.phase else "")
    place += "" if tuple(ranks) == (0,) else f", rank{'s' * (len(ranks) > 1)} {spans(ranks)}"
    what = {
        RUNNING: f"still runs, in {place}",
        KILLED: f"was killed in {place}, without a word",
        INTERRUPTED: f"ended inside {place}, without close()",
    }.get(stop.state, f"stopped in {place}")
    error = ": ".join(part for part in (stop.error, " ".join(stop.text.split())) if part)
    return f"{what}: {error}" if error else what


def before(first: Divergence) -> str:
    """Return what agreed before the first divergence, "" if nothing was compared before it."""
    earlier = _earlier_steps(first)
    if not first.agreed_before:
        return f"{earlier} {'agrees' if first.agreed_steps == 1 else 'agree'}." if earlier else ""
    phases = f"{counted(first.agreed_phases, 'phase')} and " if first.agreed_phases else ""
    verb = "agree" if phases or first.agreed_before > 1 else "agrees"
    records = f"{counted(first.agreed_before, 'record')} of step {first.step} {verb}"
    return f"{phases}{records}{f', and {earlier}' if earlier else ''}."


def _earlier_steps(first: Divergence) -> str:
    if not first.agreed_steps:
        return ""
    if first.agreed_steps != first.step:  # some were not recorded, or the first is not step 0
        return f"all of {counted(first.agreed_steps, 'earlier step')}"
    return "all of step 0" if first.step == 1 else f"all of steps 0 to {first.step - 1}"


def earlier_of(earlier: Earlier, relation: Relation) -> str:
    """Return how the answer stands to that of an earlier comparison."""
    place = ", ".join(filter(None, [f"step {earlier.step}", earlier.phase]))
    named = f"{earlier.entry or earlier.record} at {place}"
    looked = "all cells were recorded then, and " if earlier.all_cells and earlier.entry else ""
    agreed = f"{earlier.agreed} records of that step before it agreed" if earlier.agreed else ""
    said = {
        Relation.SAME: f"it named the same place; {looked}{agreed}".rstrip("; "),
        Relation.INSIDE: f"it named {named}, which comes of this",
        Relation.BEFORE: f"it named {named}; this lies in another phase of that step",
        Relation.ELSEWHERE: f"it named another place, {named}: {_REPEATABLE}",
        Relation.NEW: f"it ended {earlier.status}: what differs now was not recorded then, or "
        f"{_REPEATABLE}",
        Relation.NOT_SEEN: f"it named {named}, and nothing that was recorded now differs: "
        f"{_REPEATABLE}",
        Relation.AGREED: f"it ended {earlier.status}, too",
    }
    return f"the earlier comparison {earlier.path}: {said[relation]}"


def chosen_of(chosen: Chosen) -> list[str]:
    """Return which part of the runs was compared, and what was left out by that, in lines."""
    asked = [
        (f"steps {chosen.steps}", bool(chosen.steps)),
        (f"keys {', '.join(chosen.keys)}", bool(chosen.keys)),
        (f"records that match {_either(chosen.include)}", bool(chosen.include)),
        (f"no record that matches {_either(chosen.exclude)}", bool(chosen.exclude)),
        ("what both runs have (--common)", chosen.common),
        ("up to the first divergence (--first-only)", chosen.first_only),
    ]
    left_out = [
        (f"steps {spans(chosen.steps_left_out)}", bool(chosen.steps_left_out)),
        ("all cells", bool(chosen.keys)),
        (f"keys {_some(chosen.keys_left_out)}", bool(chosen.keys_left_out)),
        (f"steps {spans(chosen.steps_after)}, which come after it", bool(chosen.steps_after)),
    ]
    lines = []
    for what, parts in (("compared", asked), ("left out", left_out)):
        said = [words for words, holds in parts if holds]
        if said:
            lines.append(f"{what}: {'; '.join(said)}")
    return lines


def _either(patterns: Sequence[str]) -> str:
    return " or ".join(map(repr, patterns))


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def size_of_next(first: Divergence, one_run: bool) -> str:
    """Return what the next recording takes, as far as it is known.

    Args:
        one_run: whether the run is compared with itself, and recorded once more alone.
    """
    from mindrlhf_msprobe.common.units import size

    settings = first.next_step or {}
    if first.next_step_bytes is not None:
        about = f"about {size(first.next_step_bytes)}{'' if one_run else ' each'}, of a rank"
        return f" ({about}{', estimated from its cells' * first.next_step_estimated})"
    if "msprobe" in settings:
        return (
            " (how much that takes is not known: after one step of it, mindrlhf-msprobe estimate "
            "says it)"
        )
    return ""


def bisection_of(first: Divergence) -> str:
    """Return that the next recording is a round of a bisection, "" if it is not."""
    from mindrlhf_msprobe.common.units import size

    if first.next_step_whole is None:
        return ""
    return (
        f"All cells that may be to blame would take about {size(first.next_step_whole)}: this is "
        f"one round of a bisection over the layers; the comparison of it says which to record next."
    )


def weights_of(weights: Weights) -> str:
    """Return how many of a role's initial parameters differ, without their names."""
    if weights.agree:
        return f"all {counted(weights.compared, 'parameter')} agree bit for bit"
    if not (weights.compared or weights.only_in_a or weights.only_in_b):
        return "nothing to compare"
    parts = [f"{len(weights.different)} of {counted(weights.compared, 'parameter')} differ"]
    for names, side in ((weights.only_in_a, "A"), (weights.only_in_b, "B")):
        if names:
            parts.append(f"{len(names)} only in {side}")
    return ", ".join(parts)


def rule_use(rule: RuleUse) -> str:
    """Return a tolerance and how often it decided."""
    return f"{rule.rule}: {counted(rule.records, 'record')}, {rule.passed} agree only by it"


def factor(value: float | None) -> str:
    """Return a growth as ×12, empty where it is not known."""
    return "" if value is None else f"×{value:.2g}" if value < 100 else f"×{value:.0f}"


def merged(lines: Sequence[str]) -> list[str]:
    """Return lines of which those that differ in one word stand in one: x / y was not recorded.

    Lines that differ only in which run they are about stay apart.
    """
    groups: list[tuple[list[str], int | None, list[str]]] = []
    for line in lines:
        words = line.split(" ")
        for index, (base, place, others) in enumerate(groups):
            at = _only_difference(base, words)
            if at is not None and place in (None, at):
                groups[index] = (base, at, [*others, words[at]])
                break
        else:
            groups.append((words, None, []))
    return [_together(*group) for group in groups]


def _only_difference(a: list[str], b: list[str]) -> int | None:
    if len(a) != len(b) or len(a) < _SHARED_WORDS:
        return None
    unlike = [index for index, pair in enumerate(zip(a, b)) if pair[0] != pair[1]]
    if len(unlike) != 1 or {a[unlike[0]], b[unlike[0]]} <= {"A", "B"}:
        return None
    return unlike[0]


def _together(words: list[str], place: int | None, others: list[str]) -> str:
    if place is None:
        return " ".join(words)
    names = [words[place], *others]
    end = next((sign for sign in ":;," if all(name.endswith(sign) for name in names)), "")
    joined = " / ".join(name.removesuffix(end) for name in names)
    return " ".join([*words[:place], joined + end, *words[place + 1 :]])


#: Where PrecisionDebugger's settings stand.
CONFIG_JSON = "config.json"


def place_of_settings(settings: Mapping[str, Any]) -> str:
    """Return where the settings of a next step stand: a section of a YAML file, or config.json."""
    return "msprobe_config" if "msprobe" in settings else CONFIG_JSON
