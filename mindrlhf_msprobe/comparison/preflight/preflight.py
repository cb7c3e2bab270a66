"""What differs between two runs before any tensor is looked at: settings, versions, weights.

Works on the manifests and configurations that runs offer. They are data from elsewhere: whatever
stands in them, nothing here raises. What only one run says is unknown, not different.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from mindrlhf_msprobe.common.message import Message, Messages, message, quoted
from mindrlhf_msprobe.common.printable import few_numbers
from mindrlhf_msprobe.comparison.preflight.networks import (
    begun_apart,
    compare_networks,
    first_step,
    last_step,
    settings_apart,
)
from mindrlhf_msprobe.comparison.preflight.values import (
    ABSENT,
    DIRECTORY,
    Found,
    Notes,
    Ranks,
    compare,
    difference_of,
    is_known,
    named,
    same_versions,
    shortened,
    some_ranks,
    text_of,
)
from mindrlhf_msprobe.config import SAME
from mindrlhf_msprobe.findings import STAND_INS, Difference, Preflight, Weights
from mindrlhf_msprobe.phases import phase_table, role_of
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.manifest import random_states
from mindrlhf_msprobe.storage.manifest.coverage import KEY_DATA
from mindrlhf_msprobe.storage.manifest.random_states import UNKNOWN
from mindrlhf_msprobe.storage.manifest.run_file import (
    AT_FIRST_PHASE,
    Generation,
    RunFile,
    Settings,
    Timeline,
    began_otherwise,
    timelines,
)
from mindrlhf_msprobe.storage.reading.reader import Run

MAX_DIFFERENCES = 1000
_SECTIONS = (
    *("versions", "device", "world", "seeds", "determinism"),
    *("modes", "cells", "optimizers", "generation"),
    *("environment", "configurations", "msprobe_config"),
)
# Sections of which the later snapshot counts, the one of the first network that was entered.
_SETTINGS = ("device", "seeds", "determinism", "environment")
# What a further attempt notes where it is different.
_OF_ATTEMPTS = (
    *("versions", "device", "determinism", "environment"),
    *("networks", "modes", "optimizers", "generation"),
)
_COUNTED = ("networks", "modes", "optimizers")  # of them, what is noted with the others
# Addresses, ports, ids and log directories: other in any two runs, and without a meaning.
_MEANINGLESS = (
    *("MS_SCHED_HOST", "MS_SCHED_PORT", "MS_NODE_ID", "MS_WORKER_IP", "RANK_TABLE_FILE"),
    *("HCCL_IF_IP", "HCCL_IF_BASE_PORT", "GLOG_log_dir", "ASCEND_PROCESS_LOG_PATH"),
    *("ASCEND_WORK_PATH", "ASCEND_CACHE_PATH"),
)
_NOT_RECORDING = (
    *(
        DIRECTORY,
        "existing",
        "strict",
        "buffer_mb",
        "keep_mb",
        "on_finding",
        "rules",
        "tensorboard",
        *("rollout_from", "rollout_order", "rollout_seed", "rollout_steps", "replace"),
    ),
)
# Say which rank it is: other on any two ranks.
_RANK_ITSELF = (
    *("RANK", "RANK_ID", "LOCAL_RANK", "LOCAL_RANK_ID", "DEVICE_ID", "ASCEND_DEVICE_ID"),
    "device_id",
)


class Given(Protocol):
    """What is asked of a run, or of a file that was collected without one."""

    @property
    def path(self) -> Path:
        """Where it lies."""

    @property
    def run_files(self) -> Sequence[RunFile]:
        """The manifests, one a rank."""

    def configurations(self) -> dict[str, Any] | None:
        """Return the trainer's configurations, by name; None if there are none."""


def preflight(a: Given, b: Given, ranks: Mapping[int, int] | None = None) -> Preflight:
    """Compare what two runs were given: versions, device, seeds, configurations, weights, …

    Ranks are compared one by one; what differs on several of them in the same way stands once,
    and names the ranks only where others do not differ so. At most `MAX_DIFFERENCES` differences
    are kept.

    Args:
        ranks: which ranks of A are compared with which of B, and no others (two ranks of one run if
            A is B); None or empty: each against the same of the other run.
    """
    notes = Notes()
    sides = _by_rank(a, "A", notes), _by_rank(b, "B", notes)
    if ranks:
        sides = _chosen(sides[0], {n: n for n in ranks}), _chosen(sides[1], ranks)
    differences: dict[str, list[Difference]] = {section: [] for section in _SECTIONS}
    by_rank = [
        (rank, left, sides[1][rank]) for rank, left in sorted(sides[0].items()) if rank in sides[1]
    ]
    for found in _of_ranks(by_rank, sides, ranks or {}, notes):
        differences[found.section].append(found)
    weights = compare_weights(by_rank, notes)
    differences["configurations"] += _of_configurations(a, b, notes)
    # What the second round was configured to record explains nothing, so it comes last.
    kept = sorted(_capped(differences, notes), key=lambda found: found.is_of_recording)
    return Preflight(tuple(kept), weights, notes.messages())


_ByRank = dict[int, RunFile]


def _of_ranks(
    by_rank: list[tuple[int, RunFile, RunFile]],
    sides: tuple[_ByRank, _ByRank],
    ranks: Mapping[int, int],
    notes: Notes,
) -> Iterator[Difference]:
    """Yield what the manifests of ranks that both runs have say unlike."""
    if not by_rank:
        _note_no_pair(*sides, ranks, notes)
        return
    for name, side, other in zip("AB", sides, reversed(sides)):
        alone = sorted(set(side) - set(other))
        if alone:
            notes.add("ranks_alone", side=name, **some_ranks(alone))
    merged = Ranks(len(by_rank))
    for rank, left, right in by_rank:
        _compare_manifests(rank, left, right, merged, notes, ranks.get(rank, rank) != rank)
        compare_networks(rank, left, right, merged, notes)
        compare_generation(rank, left, right, merged, notes)
        compare_random_states(rank, left, right, merged)
        _note_left_out(left, right, notes)
        _note_changed_training(left, right, notes)
        _note_played(left, right, notes)
    yield from merged.differences()


def _of_configurations(a: Given, b: Given, notes: Notes) -> Iterator[Difference]:
    pair = _configurations(a), _configurations(b)
    unread = [
        name
        for name, run, content in zip("AB", (a, b), pair)
        if content is None and os.path.lexists(run.path / layout.CONFIGURATIONS_FILE)
    ]
    if unread:
        notes.add("configurations_unread", file=layout.CONFIGURATIONS_FILE, sides=unread)
    elif is_known("configurations", *pair, notes):
        for name, left, right in compare("configurations", *pair, notes):
            yield difference_of(Difference("configurations", name, None, None), left, right)


def _chosen(side: _ByRank, ranks: Mapping[int, int]) -> _ByRank:
    return {shown: side[own] for shown, own in ranks.items() if own in side}


def _note_no_pair(a: _ByRank, b: _ByRank, given: Mapping[int, int], notes: Notes) -> None:
    if a and b:
        notes.add("no_common_rank")
        return
    missing = [(name, i) for i, (name, side) in enumerate((("A", a), ("B", b))) if not side]
    wanted = sorted({n for _, i in missing for n in (given.values() if i else given)})
    notes.add("no_manifest", sides=[name for name, _ in missing], **some_ranks(wanted))


def _by_rank(run: Given, name: str, notes: Notes) -> _ByRank:
    found: _ByRank = {}
    files = run.run_files
    for file in files:
        rank = file.rank
        if rank is None and len(files) > 1:
            notes.add("whose_rank", side=name)
            continue
        if (rank or 0) in found:
            notes.add("two_manifests", side=name, rank=rank)
        found.setdefault(rank or 0, file)
    return found


def _compare_manifests(
    rank: int, a: RunFile, b: RunFile, merged: Ranks, notes: Notes, other_rank: bool
) -> None:
    late = a.taken == AT_FIRST_PHASE == b.taken
    certain = late and a.taken_in == b.taken_in
    sections: dict[str, Callable[[RunFile], Any]] = {"versions": _versions, "world": _world}
    for name in _SETTINGS:
        sections[name] = partial(_setting, name=name, late=late, other_rank=other_rank)
    sections["msprobe_config"] = _recording
    for section, take in sections.items():
        pair = take(a), take(b)
        if is_known(section, *pair, notes):
            found = compare(section, *pair, notes)
            if section == "seeds" and not certain:
                found = _certain_seeds(found, notes)
            merged.add(section, rank, found)
    for name, file in (("A", a), ("B", b)):
        for number, attempt in enumerate(file.attempts, 1):
            unlike = began_otherwise(file, attempt)
            noted = [section for section in _OF_ATTEMPTS if section in attempt.json]
            if other := [s for s in noted if s not in _COUNTED or s in unlike]:
                notes.add("attempt", number=number, side=name, sections=other)
    _note_resumed(a, b, notes)


def _note_resumed(a: RunFile, b: RunFile, notes: Notes) -> None:
    """Note a run that went on with an optimizer which had counted fewer updates.

    Than that of the other run, which went on at the same step; else than it should itself: no more
    than before its first step. A run that begins behind the other one went on from there, too: the
    first step is that of the other one.
    """
    for name, file, other in (("A", a, b), ("B", b, a)):
        began, starts = first_step(file), first_step(other)
        resumed: list[tuple[int, Settings, RunFile, int]] = [
            (attempt.begins_with or 0, attempt, file, began) for attempt in file.attempts[1:]
        ]
        if began > starts:
            resumed.append((began, file, other, starts))
        for step, settings, before, since in resumed:
            theirs = next((o for o in other.attempts[1:] if o.begins_with == step), None)
            for optimizer, count in _counted(settings).items():
                known = {"side": name, "step": step, "optimizer": optimizer, "count": count}
                against = None if theirs is None else _counted(theirs).get(optimizer)
                if against is not None and count < against:
                    notes.add("resumed", **known, against=against)
                elif against is None and step > since and count == _counted(before).get(optimizer):
                    notes.add("not_restored", **known, began=since)


def resumed_otherwise(preflight: Preflight, step: int, *, at_step: bool = False) -> Messages:
    """Return which run went on with another state of an optimizer, before a step.

    Args:
        at_step: whether also those that went on with that step itself.
    """
    return tuple(
        message("remark.sentence", what=note)
        for note in preflight.not_compared
        if note.code in _RESUMED and note.params["step"] < step + at_step
    )


def _counted(settings: Settings) -> dict[str, int]:
    """Return how many updates each optimizer had counted when its settings were noted."""
    return {text_of(name): count for name, count in settings.counted.items()}


def _versions(file: RunFile) -> dict[str, Any] | None:
    versions = file.versions
    if versions is None or file.tool_version is None:
        return versions
    return {**versions, "mindrlhf_msprobe": file.tool_version}


def _world(file: RunFile) -> dict[str, Any] | None:
    world = file.world.json
    return {"size": world["size"]} if "size" in world else None


def _setting(file: RunFile, name: str, late: bool, other_rank: bool) -> dict[str, Any] | None:
    """Return a section as it was at the moment that both runs noted, without what says nothing.

    Args:
        late: whether that moment is the first network's.
        other_rank: whether it is compared with that of another rank.
    """
    early = None if late else getattr(Settings.from_json(file.at_start), name)
    chosen = getattr(file, name) if early is None else early
    left_out = (_MEANINGLESS if name == "environment" else ()) + (_RANK_ITSELF * other_rank)
    return chosen and {key: value for key, value in chosen.items() if key not in left_out}


def _certain_seeds(found: Iterable[Found], notes: Notes) -> Iterator[Found]:
    """Leave out what a trainer may have set after the probe's start, when it was looked at."""
    for name, a, b in found:
        if name in GENERATOR_STATES or (name == "mindspore" and (a is None or b is None)):
            notes.about("early_seed", name)
        else:
            yield name, a, b


def _recording(file: RunFile) -> dict[str, Any] | None:
    """Return the settings that change what is recorded."""
    if "config" in file.unread:
        return None
    return {key: v for key, v in file.config.json.items() if key not in _NOT_RECORDING}


def _note_left_out(a: RunFile, b: RunFile, notes: Notes) -> None:
    """Note the key data that neither side could record: nothing else of them meets the eye."""
    left_out, other = (side.reasons.get(KEY_DATA) for side in (a, b))
    for key, why in left_out.items() if isinstance(left_out, dict) else ():
        if isinstance(other, dict) and key in other:
            said = message("note.all", notes=[*map(quoted, why)])
            notes.about("key_data_left_out", text_of(key), why=said)


def _note_changed_training(a: RunFile, b: RunFile, notes: Notes) -> None:
    """Note a run whose training went on with results of second runs (`handler_type: fix`)."""
    for name, side in zip("AB", (a, b)):
        changed = side.changed_training
        if changed is not None:
            by = ", ".join(text_of(value) for value in changed.values())
            notes.add("changed_training", side=name, by=by)


def _note_played(a: RunFile, b: RunFile, notes: Notes) -> None:
    """Note what was given to a training by another run (`rollout_from`, `replace`)."""
    for name, side in zip("AB", (a, b)):
        for what, how in (side.played or {}).items():
            found = how if isinstance(how, dict) else {}
            order = found.get("order", SAME)
            said = "" if order == SAME else f" ({text_of(order)})"
            path = text_of(found.get("from", "?"))
            notes.add("played", side=name, name=text_of(what), path=path, order=said)


def _configurations(run: Given) -> dict[str, Any] | None:
    try:
        return run.configurations()
    except OSError:
        return None


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


def compare_weights(
    by_rank: list[tuple[int, RunFile, RunFile]], notes: Notes
) -> tuple[Weights, ...]:
    """Compare the initial weights of every role, given (rank, manifest of A, manifest of B).

    Of runs that begin at unlike steps unlike ones are no difference.
    """
    found: dict[str, _RoleWeights] = {}
    for rank, a, b in by_rank:
        left, right = a.initial_weights, b.initial_weights
        if not is_known("initial_weights", left, right, notes) or left is None or right is None:
            continue
        for role in dict.fromkeys([*left, *right]):
            names = left.get(role), right.get(role)
            shown = shortened(role)
            if isinstance(names[0], dict) and isinstance(names[1], dict):
                if names[0] != names[1] and (steps := begun_apart(a, b)) is not None:
                    notes.add("weights_of_other_steps", role=shown, a=steps[0], b=steps[1])
                    continue
                together = found.setdefault(shown, _RoleWeights(shown))
                together.add(rank, names[0], names[1], notes)
                continue
            for run, theirs, others in zip("AB", names, reversed(names)):
                if theirs is not None and not isinstance(theirs, dict):
                    notes.add("weights_unreadable", role=shown, side=run)
                elif theirs is not None and others is None:
                    notes.about("weights_only_in", shown, side=run)
    return tuple(weights.result() for weights in found.values())


class _RoleWeights:
    """The initial weights of one role over the ranks."""

    def __init__(self, role: str) -> None:
        self._role = role
        self._ranks: list[int] = []
        self._compared: dict[str, list[int]] = {}
        self._different: dict[str, list[int]] = {}
        self._only: tuple[dict[str, list[int]], ...] = ({}, {})

    def add(self, rank: int, a: dict[str, Any], b: dict[str, Any], notes: Notes) -> None:
        self._ranks.append(rank)
        unread = unlike = 0
        for name in dict.fromkeys([*a, *b]):
            if name not in a or name not in b:
                self._only[name not in a].setdefault(name, []).append(rank)
                continue
            left, right = a[name], b[name]
            if not (isinstance(left, str) and isinstance(right, str)):
                unread += 1
            elif left.partition(":")[0] != right.partition(":")[0]:
                unlike += 1
            else:
                self._compared.setdefault(name, []).append(rank)
                if left != right:
                    self._different.setdefault(name, []).append(rank)
        if unread:
            notes.add("weights_without_fingerprint", role=self._role, count=unread)
        if unlike:
            notes.add("weights_other_algorithm", role=self._role, count=unlike)

    def result(self) -> Weights:
        return Weights(
            self._role,
            len(self._compared),
            tuple(
                self._named(name, r, self._compared[name]) for name, r in self._different.items()
            ),
            *(
                tuple(self._named(name, ranks, self._ranks) for name, ranks in only.items())
                for only in self._only
            ),
        )

    def _named(self, name: str, ranks: list[int], of: list[int]) -> str:
        name = named((name,))
        return name if len(ranks) == len(of) else f"{name} (rank {few_numbers(ranks)})"


SEEDS, GENERATION = "seeds", "generation"


class OwnStep(NamedTuple):
    """A step of one rank, by the run's own numbers."""

    run: Run
    step: int
    rank: int


def compare_generation(rank: int, a: RunFile, b: RunFile, merged: Ranks, notes: Notes) -> None:
    """Add which settings of generation differ on one rank, given both manifests."""
    left, right = a.generation, b.generation
    if not is_known("generation_settings", left or None, right or None, notes, neither=False):
        return
    last = min(last_step(a), last_step(b))
    for phase in dict.fromkeys([*left, *right]):
        both = _timelines(left.get(phase)), _timelines(right.get(phase))
        if not (both[0] and both[1]):
            notes.only_in(GENERATION, bool(both[0]), phase)
            continue
        table, whose = phase_table({}), (GENERATION, phase)
        role = table[phase].role if phase in table else None
        unknown = None if same_versions(a, b) else notes
        begin = max(min(timeline[0][0] for timeline in side.values()) for side in both)
        for setting, step, *values in settings_apart(*both, last, whose, unknown, begin=begin):
            name = named((phase, setting))
            what = Difference(GENERATION, name, None, None, role, (phase,), step)
            merged.add_one(what, rank, *values)


def _timelines(content: Generation | None) -> dict[str, Timeline]:
    if content is None or content.step is None:
        return {}
    found: dict[str, Timeline] = {n: [(content.step, v)] for n, v in content.settings.items()}
    for name, changes in timelines(content.changes, lambda change: str(change.name)).items():
        found.setdefault(name, [(content.step, ABSENT)]).extend(changes)
    return found


def compare_random_states(rank: int, a: RunFile, b: RunFile, merged: Ranks) -> None:
    """Add the generators whose states are equal at first, and differ from a later step on.

    Those that differ in the first step stand among the seeds already. A step counts in which both
    states are known, and in which neither is that of a generator which nobody seeded or used.
    """
    sides = random_states.by_step(a.random_states), random_states.by_step(b.random_states)
    for name, of_a in sides[0].items():
        of_b = sides[1].get(name, {})
        both = {step: (state, of_b.get(step, UNKNOWN)) for step, state in sorted(of_a.items())}
        known = [step for step, states in both.items() if UNKNOWN not in states]
        first = next((step for step in known if both[step][0] != both[step][1]), None)
        if first is not None and first != known[0]:
            merged.add_one(Difference(SEEDS, name, None, None, step=first), rank, *both[first])


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
_EXPLAINING = (
    *("modes", "cells", "optimizers", "generation", "versions", "configurations"),
    *("device", "world", "environment"),
)
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
    if unlike:
        return () if known else (_about_weights(unlike[0]), *_sentence(others))
    return (
        (_agreeing(same, differences, known or not drawn, others),) if same else _sentence(others)
    )


def _agreeing(
    same: Sequence[Weights],
    differences: Sequence[Difference],
    known: bool,
    others: Message | None,
) -> Message:
    """Return that weights agree, and what of the settings stands beside it."""
    agree: dict[str, Any] = {
        "role": same[0].role if len(same) == 1 else None,
        "networks": len(same),
        "parameters": sum(w.compared for w in same),
    }
    if others is not None:
        return message("remark.weights_agree_but", **agree, but=others)
    sections = {d.section for d in differences}
    if not known and "seeds" in sections:
        return message("remark.only_random", **agree)
    if known or sections:
        return message("remark.weights_agree", **agree)
    return message("remark.no_setting", **agree)


def _sentence(clause: Message | None) -> Messages:
    return () if clause is None else (message("remark.sentence", what=clause),)


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
    return text if len(text) <= 60 else f"{text[:60]}…"
