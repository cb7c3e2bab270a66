"""What differs between two runs before any tensor is looked at: settings, versions, weights.

Works on the snapshots that runs and collections offer. They are data from others: whatever stands
in them, nothing here raises. What only one run says is unknown, not different.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, Messages, message, quoted
from mindrlhf_msprobe.common.printable import cut, few_numbers
from mindrlhf_msprobe.comparison.preflight.networks import SEEDS, compare_networks
from mindrlhf_msprobe.comparison.preflight.values import (
    DIRECTORY,
    Notes,
    RankPair,
    Ranks,
    compare,
    differences_of,
    first_step,
    named,
    shortened,
    some_ranks,
    text_of,
)
from mindrlhf_msprobe.config import SAME
from mindrlhf_msprobe.findings import STAND_INS, Difference, Preflight, Weights
from mindrlhf_msprobe.phases import role_of
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.manifest import random_states
from mindrlhf_msprobe.storage.manifest.coverage import KEY_DATA
from mindrlhf_msprobe.storage.manifest.random_states import UNKNOWN
from mindrlhf_msprobe.storage.manifest.run_file import (
    AT_FIRST_PHASE,
    RunFile,
    Settings,
    began_unlike,
)
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.snapshot import Snapshot, Trait, kinds_with

MAX_DIFFERENCES = 1000
WEIGHTS = "initial_weights"
# In the order of verdict.json.
_SECTIONS = (
    *("versions", "device", "world", "seeds", "determinism"),
    *("modes", "cells", "optimizers", "generation"),
    *("environment", "configurations", "msprobe_config"),
)
_COUNTED = ("networks", "modes", "optimizers")  # of an attempt, what is noted with the others
# Addresses, ports, ids and log directories: other in any two runs, and without a meaning.
_MEANINGLESS = (
    *("MS_SCHED_HOST", "MS_SCHED_PORT", "MS_NODE_ID", "MS_WORKER_IP", "RANK_TABLE_FILE"),
    *("HCCL_IF_IP", "HCCL_IF_BASE_PORT", "GLOG_log_dir", "ASCEND_PROCESS_LOG_PATH"),
    *("ASCEND_WORK_PATH", "ASCEND_CACHE_PATH"),
)
_NOT_RECORDING = (
    *(DIRECTORY, "existing", "strict", "buffer_mb", "keep_mb", "on_finding", "rules"),
    *("tensorboard", "rollout_from", "rollout_order", "rollout_seed", "rollout_steps", "replace"),
)
# Say which rank it is: other on any two ranks.
_RANK_ITSELF = (
    *("RANK", "RANK_ID", "LOCAL_RANK", "LOCAL_RANK_ID", "DEVICE_ID", "ASCEND_DEVICE_ID"),
    "device_id",
)


def preflight(a: Run, b: Run, ranks: Mapping[int, int] | None = None) -> Preflight:
    """Compare what two runs were given, as `compare_snapshots` does."""
    return compare_snapshots(Snapshot.of(a), Snapshot.of(b), Notes(), ranks)


def compare_snapshots(
    a: Snapshot, b: Snapshot, notes: Notes, ranks: Mapping[int, int] | None = None
) -> Preflight:
    """Compare what two runs were given: versions, device, seeds, configurations, weights, …

    Ranks are compared one by one; what differs on several of them in the same way stands once,
    and names the ranks only where others do not differ so. At most `MAX_DIFFERENCES` differences
    are kept.

    Args:
        ranks: which ranks of A are compared with which of B, and no others (two ranks of one run if
            A is B); None or empty: each against the same of the other run.
    """
    sides = _by_rank(a, "A", notes), _by_rank(b, "B", notes)
    ranks = ranks or {}
    if ranks:
        sides = (
            {rank: sides[0][rank] for rank in ranks if rank in sides[0]},
            {rank: sides[1][own] for rank, own in ranks.items() if own in sides[1]},
        )
    common = sorted({*sides[0]} & {*sides[1]})
    merged = Ranks(len(common))
    pairs = [RankPair(rank, sides[0][rank], sides[1][rank], merged, notes) for rank in common]
    _note_ranks(sides, ranks, notes)
    for pair in pairs:
        _compare_sections(pair, other_rank=ranks.get(pair.rank, pair.rank) != pair.rank)
        _note_attempts(pair)
        compare_networks(pair)
        _note_conduct(pair)
    differences: dict[str, list[Difference]] = {section: [] for section in _SECTIONS}
    for found in merged.differences():
        differences[found.section].append(found)
    weights = compare_weights(pairs, notes)
    differences["configurations"] += _of_configurations(a, b, notes)
    # What the second round was configured to record explains nothing, so it comes last.
    kept = sorted(_capped(differences, notes), key=lambda found: found.is_of_recording)
    return Preflight(tuple(kept), weights, notes.messages())


def _by_rank(side: Snapshot, name: str, notes: Notes) -> dict[int, RunFile]:
    found: dict[int, RunFile] = {}
    for file in side.run_files:
        rank = file.rank
        if rank is None and len(side.run_files) > 1:
            notes.add("whose_rank", side=name)
            continue
        if (rank or 0) in found:
            notes.add("two_manifests", side=name, rank=rank)
        found.setdefault(rank or 0, file)
    return found


def _note_ranks(
    sides: tuple[dict[int, RunFile], dict[int, RunFile]], given: Mapping[int, int], notes: Notes
) -> None:
    """Note the ranks of one run alone; where there is no other, why there is nothing to compare."""
    a, b = sides
    if {*a} & {*b}:
        for name, side, other in (("A", a, b), ("B", b, a)):
            if alone := sorted({*side} - {*other}):
                notes.add("ranks_alone", side=name, **some_ranks(alone))
    elif a and b:
        notes.add("no_common_rank")
    else:
        wanted = {*(given if not a else ()), *(given.values() if not b else ())}
        missing = [name for name, side in zip("AB", sides) if not side]
        notes.add("no_manifest", sides=missing, **some_ranks(sorted(wanted)))


def _of_configurations(a: Snapshot, b: Snapshot, notes: Notes) -> Iterator[Difference]:
    pair = a.configurations, b.configurations
    unread = [
        name
        for name, side in zip("AB", (a, b))
        if side.configurations is None and os.path.lexists(side.path / layout.CONFIGURATIONS_FILE)
    ]
    if unread:
        notes.add("configurations_unread", file=layout.CONFIGURATIONS_FILE, sides=unread)
    elif notes.both_know("configurations", *pair):
        yield from differences_of("configurations", compare("configurations", *pair, notes))


def _compare_sections(pair: RankPair, *, other_rank: bool) -> None:
    """Compare what the manifests of a rank say in plain sections.

    Args:
        other_rank: whether it is compared with another rank.
    """
    late = pair.a.taken == AT_FIRST_PHASE == pair.b.taken
    certain = late and pair.a.taken_in == pair.b.taken_in
    left_out = {*_MEANINGLESS, *(_RANK_ITSELF if other_rank else ())}
    sections: dict[str, Callable[[RunFile], dict[str, Any] | None]] = {
        "versions": _versions,
        "world": lambda file: {"size": w["size"]} if "size" in (w := file.world.json) else None,
    }
    for section in kinds_with(Trait.TAKEN_TWICE, Settings.every_key()):
        sections[section] = partial(_at_moment, section=section, late=late, left_out=left_out)
    sections["msprobe_config"] = _recording
    for section, of in sections.items():
        both = pair.both_know(section, of)
        for name, a, b in compare(section, *both, pair.notes) if both else ():
            # A trainer may have set it after the probe's start, when it was looked at.
            early = name in GENERATOR_STATES or (name == "mindspore" and None in (a, b))
            if section == SEEDS and early and not certain:
                pair.notes.about("early_seed", name)
            else:
                pair.add(Difference(section, name), a, b)


def _versions(file: RunFile) -> dict[str, Any] | None:
    versions = file.versions
    if versions is None or file.tool_version is None:
        return versions
    return {**versions, "mindrlhf_msprobe": file.tool_version}


def _at_moment(
    file: RunFile, section: str, late: bool, left_out: Collection[str]
) -> dict[str, Any] | None:
    """Return a section as it was at the moment that both runs noted, without what says nothing.

    Args:
        late: whether that moment is the first network's.
    """
    early = None if late else getattr(Settings.from_json(file.at_start), section)
    chosen = getattr(file, section) if early is None else early
    return chosen and {key: value for key, value in chosen.items() if key not in left_out}


def _recording(file: RunFile) -> dict[str, Any] | None:
    """Return the settings that change what is recorded."""
    if "config" in file.unread:
        return None
    return {key: v for key, v in file.config.json.items() if key not in _NOT_RECORDING}


def _note_attempts(pair: RankPair) -> None:
    """Note further attempts that ran with something else, and those without their optimizer."""
    for name, file in (("A", pair.a), ("B", pair.b)):
        for number, attempt in enumerate(file.attempts, 1):
            unlike = began_unlike(file, attempt)
            sections = [
                s
                for s in kinds_with(Trait.OF_ATTEMPTS, Settings.every_key())
                if s in attempt.json and (s not in _COUNTED or s in unlike)
            ]
            if sections:
                pair.notes.add("attempt", number=number, side=name, sections=sections)
    for name, file, other in (("A", pair.a, pair.b), ("B", pair.b, pair.a)):
        _note_resumed(name, file, other, pair.notes)


def _note_resumed(name: str, file: RunFile, other: RunFile, notes: Notes) -> None:
    """Note a run that went on with an optimizer which had counted fewer updates.

    Than that of the other run, which went on at the same step; else than it should itself: no more
    than before its first step. A run that begins behind the other one went on from there, too: the
    first step is that of the other one.
    """
    began, starts = first_step(file), first_step(other)
    resumed: list[tuple[int, Settings, RunFile, int]] = [
        (attempt.begins_with or 0, attempt, file, began) for attempt in file.attempts[1:]
    ]
    if began > starts:
        resumed.append((began, file, other, starts))
    for step, settings, before, first in resumed:
        theirs = next((o for o in other.attempts[1:] if o.begins_with == step), None)
        for optimizer, count in settings.counted.items():
            whose = text_of(optimizer)
            known = {"side": name, "step": step, "optimizer": whose, "count": count}
            against = None if theirs is None else theirs.counted.get(optimizer)
            if against is not None and count < against:
                notes.add("resumed", **known, against=against)
            elif against is None and step > first and count == before.counted.get(optimizer):
                notes.add("not_restored", **known, began=first)


def resumed_differently(preflight: Preflight, step: int, *, at_step: bool = False) -> Messages:
    """Return which run went on with another state of an optimizer, before a step.

    Args:
        at_step: whether also those that went on with that step itself.
    """
    return tuple(
        message("remark.sentence", what=note)
        for note in preflight.not_compared
        if note.code in _RESUMED and note.params["step"] < step + at_step
    )


def _note_conduct(pair: RankPair) -> None:
    """Note what of the runs themselves meets the eye nowhere else.

    Key data that neither could record, a training that went on with results of second runs
    (`handler_type: fix`), and what another run gave to one (`rollout_from`, `replace`).
    """
    left_out, other = (side.reasons.get(KEY_DATA) for side in (pair.a, pair.b))
    for key, why in left_out.items() if isinstance(left_out, dict) else ():
        if isinstance(other, dict) and key in other:
            said = message("note.all", notes=[*map(quoted, why)])
            pair.notes.about("key_data_left_out", text_of(key), why=said)
    sides = (("A", pair.a), ("B", pair.b))
    for name, side in sides:
        if side.changed_training is not None:
            by = ", ".join(text_of(value) for value in side.changed_training.values())
            pair.notes.add("changed_training", side=name, by=by)
    for name, side in sides:
        for what, how in (side.played or {}).items():
            found = how if isinstance(how, dict) else {}
            order = found.get("order", SAME)
            said_order = "" if order == SAME else f" ({text_of(order)})"
            path = text_of(found.get("from", "?"))
            pair.notes.add("played", side=name, name=text_of(what), path=path, order=said_order)
    for name, side in sides:
        for graft in side.grafted or ():
            pair.notes.add(
                "grafted",
                side=name,
                what=[*map(text_of, graft.what or ())],
                entries=[*map(text_of, graft.entries or ())],
                path=text_of(graft.run),
                put=graft.put_in or 0,
                left=graft.left,
            )


def _capped(found: dict[str, list[Difference]], notes: Notes) -> Iterator[Difference]:
    """Return at most `MAX_DIFFERENCES`, in the order of the sections, the short ones whole."""
    left, kept = MAX_DIFFERENCES, {}
    for i, section in enumerate(sorted(_SECTIONS, key=lambda name: len(found[name]))):
        kept[section] = found[section][: left // (len(_SECTIONS) - i)]
        left -= len(kept[section])
        more = len(found[section]) - len(kept[section])
        if more:
            notes.add("more_differences", section=section, count=more)
    return itertools.chain.from_iterable(kept[section] for section in _SECTIONS)


_by_name = partial(defaultdict[str, list[int]], list)


class _RoleWeights:
    """The initial weights of one role: on which ranks each parameter was compared, and how."""

    def __init__(self) -> None:
        self.ranks: list[int] = []
        self.compared, self.different = _by_name(), _by_name()
        self.only_in_a, self.only_in_b = _by_name(), _by_name()

    def result(self, role: str) -> Weights:
        alone = (
            tuple(_on_ranks(name, ranks, self.ranks) for name, ranks in only.items())
            for only in (self.only_in_a, self.only_in_b)
        )
        different = self.different.items()
        unlike = tuple(_on_ranks(name, ranks, self.compared[name]) for name, ranks in different)
        return Weights(role, len(self.compared), unlike, *alone)


def _on_ranks(name: str, ranks: list[int], of: list[int]) -> str:
    name = named((name,))
    return name if len(ranks) == len(of) else f"{name} (rank {few_numbers(ranks)})"


def compare_weights(pairs: Sequence[RankPair], notes: Notes) -> tuple[Weights, ...]:
    """Compare the initial weights of every role, rank by rank.

    Of runs that begin at unlike steps unlike ones are no difference.
    """
    found: dict[str, _RoleWeights] = defaultdict(_RoleWeights)
    for pair in pairs:
        both = pair.both_know(WEIGHTS, lambda file: file.initial_weights)
        a, b = both or ({}, {})
        for role in dict.fromkeys([*a, *b]):
            left, right = a.get(role), b.get(role)
            shown = shortened(role)
            if isinstance(left, dict) and isinstance(right, dict):
                if left != right and (steps := pair.begun_apart) is not None:
                    notes.add("weights_of_other_steps", role=shown, a=steps[0], b=steps[1])
                else:
                    _compare_role(left, right, shown, pair, found[shown])
                continue
            for run, theirs, others in (("A", left, right), ("B", right, left)):
                if theirs is not None and not isinstance(theirs, dict):
                    notes.add("weights_unreadable", role=shown, side=run)
                elif theirs is not None and others is None and WEIGHTS not in notes.not_expected:
                    notes.about("weights_only_in", shown, side=run)
    return tuple(weights.result(role) for role, weights in found.items())


def _compare_role(
    a: dict[str, Any], b: dict[str, Any], role: str, pair: RankPair, found: _RoleWeights
) -> None:
    """Compare the weights of one role on one rank."""
    found.ranks.append(pair.rank)
    unread = unlike = 0
    for name in dict.fromkeys([*a, *b]):
        if name not in a or name not in b:
            only = found.only_in_a if name in a else found.only_in_b
            only[name].append(pair.rank)
            continue
        left, right = a[name], b[name]
        if not (isinstance(left, str) and isinstance(right, str)):
            unread += 1
        elif left.partition(":")[0] != right.partition(":")[0]:
            unlike += 1
        else:
            found.compared[name].append(pair.rank)
            if left != right:
                found.different[name].append(pair.rank)
    if unread:
        pair.notes.add("weights_without_fingerprint", role=role, count=unread)
    if unlike:
        pair.notes.add("weights_other_algorithm", role=role, count=unlike)


@dataclass(frozen=True)
class OwnStep:
    """A step of one rank, by the run's own numbers."""

    run: Run
    step: int
    rank: int


def states_differ(a: OwnStep, b: OwnStep, name: str) -> bool | None:
    """Return whether a random generator began two steps in other states; None if it is not known.

    Args:
        a, b: what is compared; the same step of the same rank says nothing.
    """
    if a == b:
        return None
    states = []
    for side in (a, b):
        files = (file for file in side.run.run_files if (file.rank or 0) == side.rank)
        of_rank = next((file.random_states for file in files), None)
        states.append(random_states.by_step(of_rank).get(name, {}).get(side.step, UNKNOWN))
    return None if UNKNOWN in states else states[0] != states[1]


#: Seeds of which only a fingerprint of the generator's state is known.
GENERATOR_STATES = ("numpy_state", "random_state", "mindspore_state")
_RESUMED = ("preflight.resumed", "preflight.not_restored")
_EXPLAINING = kinds_with(Trait.EXPLAINS)
_WHOSE = {"numpy_state": "numpy", "mindspore_state": "MindSpore"}


def without_consequences(preflight: Preflight, step: int) -> Preflight:
    """Return a preflight without the states of generators that differ once runs have diverged.

    Args:
        step: of the first divergence: what is drawn after it may be another number of numbers.
    """
    kept = tuple(
        d
        for d in preflight.differences
        if d.step is None or d.step <= step or d.setting not in GENERATOR_STATES
    )
    return dataclasses.replace(preflight, differences=kept)


def remark(
    preflight: Preflight, role: str | None, *, known: bool = False, drawn: bool = True
) -> Messages:
    """Return what explains a divergence by what was given, a sentence or two; () if nothing can.

    Args:
        role: the role whose phase diverged first; None where all networks could be the cause.
        known: whether what differs and can explain it is reported already, so that only what agrees
            is left to say.
        drawn: whether it may come of random numbers: seeds and generators explain nothing else.
    """
    weights = [w for w in preflight.weights if role is None or role_of(w.role) == role]
    unlike, same = [w for w in weights if w.differ], [w for w in weights if w.agree]
    differences = [d for d in preflight.differences if not d.is_of_recording]
    telling = [d for d in differences if drawn or d.section != SEEDS]
    others = None if known else _about_settings(telling)
    sentence = () if others is None else (message("remark.sentence", what=others),)
    if unlike:
        return () if known else (_about_weights(unlike[0]), *sentence)
    if not same:
        return sentence
    agree: dict[str, Any] = {
        "role": same[0].role if len(same) == 1 else None,
        "networks": len(same),
        "parameters": sum(w.compared for w in same),
    }
    if others is not None:
        return (message("remark.weights_agree_but", **agree, but=others),)
    if drawn and not known and any(d.section == SEEDS for d in differences):
        return (message("remark.only_random", **agree),)
    told = known or not drawn or differences
    return (message("remark.weights_agree" if told else "remark.no_setting", **agree),)


def _about_weights(weights: Weights) -> Message:
    if weights.different:
        return message(
            "remark.weights_differ",
            role=weights.role,
            different=len(weights.different),
            compared=weights.compared,
            first=weights.different[0],
        )
    name, run = (weights.only_in_a[0], "A") if weights.only_in_a else (weights.only_in_b[0], "B")
    count = len(weights.only_in_a) + len(weights.only_in_b)
    return message("remark.other_parameters", role=weights.role, count=count, first=name, side=run)


def _about_settings(differences: Sequence[Difference]) -> Message | None:
    """Return the clause on what most probably matters: a seed, determinism, else a count."""
    seeds = [d for d in differences if d.section == "seeds"]
    for seed in seeds:
        if seed.setting not in GENERATOR_STATES:
            return message("remark.seed", name=seed.label, **_values(seed))
    for seed in seeds:
        if (whose := _WHOSE.get(seed.setting)) is not None:
            return message("remark.generator", whose=whose, step=seed.step)
    for found in (d for d in differences if d.section == "determinism"):
        return message("remark.determinism", name=found.label, **_values(found))
    rest = [d for d in differences if d.section in _EXPLAINING]
    rest.sort(key=lambda d: (d.is_place or d.is_of_saving, _EXPLAINING.index(d.section)))
    if not rest:
        return None
    which = {"section": rest[0].section, "name": rest[0].label}
    return message("remark.settings", count=len(rest), **which, **_values(rest[0]))


def _values(difference: Difference) -> dict[str, Message | str | None]:
    """Return both values, None for what is not set."""
    return {"a": _value(difference.a), "b": _value(difference.b)}


def _value(text: str | None) -> Message | str | None:
    if text is None or text in STAND_INS:
        return text and STAND_INS[text]
    return cut(text, 60)
