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
from typing import Any, Protocol

from mindrlhf_msprobe.common.message import message, quoted
from mindrlhf_msprobe.comparison.preflight.generation import (
    compare_generation,
    compare_random_states,
)
from mindrlhf_msprobe.comparison.preflight.networks import compare_networks
from mindrlhf_msprobe.comparison.preflight.remark import GENERATOR_STATES
from mindrlhf_msprobe.comparison.preflight.values import (
    DIRECTORY,
    Found,
    Notes,
    Ranks,
    compare,
    difference_of,
    is_known,
    some_ranks,
    text_of,
)
from mindrlhf_msprobe.comparison.preflight.weights import compare_weights
from mindrlhf_msprobe.config import SAME, ProbeConfig
from mindrlhf_msprobe.findings import Difference, Preflight
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.manifest.coverage import KEY_DATA
from mindrlhf_msprobe.storage.manifest.run_file import AT_FIRST_PHASE, SCHEMA, RunFile, Settings

MAX_DIFFERENCES = 1000

_SECTIONS = (
    *("schema", "versions", "device", "world", "seeds", "determinism"),
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
    schemas = a.json.get("schema", SCHEMA), b.json.get("schema", SCHEMA)
    for name, schema in zip("AB", schemas):
        if not isinstance(schema, int) or schema > SCHEMA:
            notes.add("newer_schema", side=name, schema=text_of(schema), known=SCHEMA)
    merged.add("schema", rank, compare("schema", *schemas, notes))
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
            if other := [section for section in _OF_ATTEMPTS if section in attempt.json]:
                notes.add("attempt", number=number, side=name, sections=other)


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
    """Return the settings that change what is recorded, defaults for those not named."""
    if "config" in file.unread:
        return None
    defaults = {
        f.name: {} if f.default is dataclasses.MISSING else f.default
        for f in dataclasses.fields(ProbeConfig)
    }
    plain = {name: list(v) if isinstance(v, tuple) else v for name, v in defaults.items()}
    plain["directions"] = ["forward", "backward"]
    return {key: v for key, v in {**plain, **file.config.json}.items() if key not in _NOT_RECORDING}


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
