"""What differs between two runs before any tensor is looked at: settings, versions, weights.

Works on the manifests and configurations that runs offer. They are data from elsewhere: whatever
stands in them, nothing here raises. What only one run says is unknown, not different.
"""

from __future__ import annotations

import dataclasses
import itertools
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mindrlhf_msprobe.config import SECTION, ProbeConfig
from mindrlhf_msprobe.findings import Difference, Preflight, Weights
from mindrlhf_msprobe.storage.atomic import number_from_json
from mindrlhf_msprobe.storage.manifest import AT_FIRST_PHASE, SCHEMA, WITHHELD
from mindrlhf_msprobe.storage.reader import Run

MAX_DIFFERENCES = 1000

_SECTIONS = (
    *("schema", "versions", "device", "world", "seeds", "determinism", "environment"),
    *("configurations", "msprobe_config"),
)
# Sections of which the later snapshot counts, the one of the first network that was entered.
_SETTINGS = ("device", "seeds", "determinism", "environment")
# A variable that is not set is not recorded; in the other sections that is an older version.
_ABSENCE_COUNTS = ("environment", "configurations")
_STATES = ("numpy_state", "random_state")
# Addresses, ports, ids and log directories: other in any two runs, and without a meaning.
_MEANINGLESS = (
    *("MS_SCHED_HOST", "MS_SCHED_PORT", "MS_NODE_ID", "MS_WORKER_IP", "RANK_TABLE_FILE"),
    *("HCCL_IF_IP", "HCCL_IF_BASE_PORT", "GLOG_log_dir", "ASCEND_PROCESS_LOG_PATH"),
    *("ASCEND_WORK_PATH", "ASCEND_CACHE_PATH"),
)
_DIRECTORY = "dump_path"
_NOT_RECORDING = (_DIRECTORY, "existing", "strict", "buffer_mb")

_MAX_DEPTH = 64
_MAX_TEXT = 200
_MAX_NAME = 300
_MAX_PAIRS = 4  # of values of one setting, over the ranks
_MAX_UNKNOWN = 40
_ABSENT: Any = object()

#: Told what could not be compared.
_Unknown = Callable[[str], None]
#: A setting's name and what both runs say.
_Found = tuple[str, Any, Any]


def preflight(a: Run, b: Run) -> Preflight:
    """Compare what two runs were given: versions, device, seeds, configurations, weights, …

    Ranks are compared one by one; what differs on several of them in the same way stands once,
    and names the ranks only where others do not differ so. At most `MAX_DIFFERENCES` differences
    are kept.
    """
    notes = _Notes()
    differences: dict[str, list[Difference]] = {section: [] for section in _SECTIONS}
    weights: tuple[Weights, ...] = ()
    sides = _by_rank(a, "A", notes.add), _by_rank(b, "B", notes.add)
    common = sorted(set(sides[0]) & set(sides[1]))
    if common:
        for name, side, other in zip("AB", sides, reversed(sides)):
            alone = sorted(set(side) - set(other))
            if alone:
                notes.add(f"rank {_numbers(alone)}: only run {name} recorded it")
        merged = _Ranks(len(common))
        by_rank = [(rank, sides[0][rank], sides[1][rank]) for rank in common]
        for rank, left, right in by_rank:
            _compare_manifests(rank, left, right, merged, notes)
        for section, found in merged.differences():
            differences[section].append(found)
        weights = _compare_weights(by_rank, notes)
    elif sides[0] and sides[1]:
        notes.add("settings and initial weights: the runs have no rank in common")
    else:
        missing = [name for name, side in zip("AB", sides) if not side]
        what = f"run {missing[0]} has no" if len(missing) == 1 else "neither run has a"
        notes.add(f"versions, settings and initial weights: {what} run.json that can be read")
    pair = _configurations(a), _configurations(b)
    if _is_known("configurations", *pair, notes):
        differences["configurations"] = [
            _difference("configurations", *one)
            for one in _compare("configurations", *pair, notes.add)
        ]
    kept = _capped(differences, notes.add)
    return Preflight(tuple(kept), weights, notes.lines())


class _Notes:
    """What could not be compared: sections that neither run has stand in one line."""

    def __init__(self) -> None:
        self._lines: dict[str, None] = {}
        self._neither: dict[str, None] = {}

    def add(self, line: str) -> None:
        self._lines.setdefault(line)

    def neither(self, section: str) -> None:
        self._neither.setdefault(section.replace("_", " "))

    def lines(self) -> tuple[str, ...]:
        lines = list(self._lines)
        left = len(lines) - _MAX_UNKNOWN
        if left > 0:
            lines[_MAX_UNKNOWN:] = [f"… {left} more things that could not be compared"]
        if self._neither:
            lines.append(f"{', '.join(self._neither)}: neither run recorded them")
        return tuple(lines)


def _by_rank(run: Run, name: str, unknown: _Unknown) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    manifests = [m for m in run.manifests if isinstance(m, dict)]
    for manifest in manifests:
        world = manifest.get("world")
        rank: Any = world.get("rank") if isinstance(world, dict) else None
        if not isinstance(rank, int) or isinstance(rank, bool) or not 0 <= rank < 10**9:
            if len(manifests) > 1:
                unknown(f"a run.json of run {name} does not say whose rank it is")
                continue
            rank = 0
        if rank in found:
            unknown(f"run {name} has two manifests of rank {rank}; the first was taken")
        found.setdefault(rank, manifest)
    return found


def _compare_manifests(
    rank: int, a: dict[str, Any], b: dict[str, Any], merged: _Ranks, notes: _Notes
) -> None:
    schemas = a.get("schema", SCHEMA), b.get("schema", SCHEMA)
    for name, schema in zip("AB", schemas):
        if not isinstance(schema, int) or schema > SCHEMA:
            notes.add(
                f"the run.json of run {name} has the schema {_text(schema)}, this version knows "
                f"{SCHEMA}: only what could be read was compared"
            )
    merged.add("schema", rank, _compare("schema", *schemas, notes.add))
    for section, take in (("versions", _versions), ("world", _world)):
        pair = take(a), take(b)
        if _is_known(section, *pair, notes):
            merged.add(section, rank, _compare(section, *pair, notes.add))
    late = a.get("taken") == AT_FIRST_PHASE == b.get("taken")
    for section in _SETTINGS:
        pair = _setting(a, section, late), _setting(b, section, late)
        if _is_known(section, *pair, notes):
            found = _compare(section, *pair, notes.add)
            if section == "seeds" and not late:
                found = _certain_seeds(found, notes.add)
            merged.add(section, rank, found)
    pair = _recording(a), _recording(b)
    if _is_known("msprobe_config", *pair, notes):
        merged.add("msprobe_config", rank, _compare("msprobe_config", *pair, notes.add))
    for name, manifest in (("A", a), ("B", b)):
        _note_attempts(name, manifest, notes.add)


def _section(manifest: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    section = manifest.get(name)
    return section if isinstance(section, dict) else None


def _versions(manifest: Mapping[str, Any]) -> dict[str, Any] | None:
    versions = _section(manifest, "versions")
    if versions is None or "tool_version" not in manifest:
        return versions
    return {**versions, "mindrlhf_msprobe": manifest["tool_version"]}


def _world(manifest: Mapping[str, Any]) -> dict[str, Any] | None:
    world = _section(manifest, "world")
    return {"size": world["size"]} if world is not None and "size" in world else None


def _setting(manifest: dict[str, Any], name: str, late: bool) -> dict[str, Any] | None:
    """Return a section as it was at the moment that both runs noted."""
    section = _section(manifest, name)
    early = None if late else _section(_section(manifest, "at_start") or {}, name)
    chosen = section if early is None else early
    if name == "environment" and chosen is not None:
        return {key: value for key, value in chosen.items() if key not in _MEANINGLESS}
    return chosen


def _certain_seeds(found: Iterable[_Found], unknown: _Unknown) -> Iterator[_Found]:
    """Leave out what a trainer may have set after the probe's start, when it was looked at."""
    for name, a, b in found:
        if name in _STATES or (name == "mindspore" and (a is None or b is None)):
            unknown(
                f"seeds: {name} was looked at when the probe started, perhaps before the trainer "
                f"set it: no network was entered in both runs"
            )
        else:
            yield name, a, b


def _recording(manifest: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the settings that change what is recorded, defaults for those not named."""
    section = _section(manifest, "config")
    if section is None:
        return None
    defaults = {
        f.name: {} if f.default is dataclasses.MISSING else f.default
        for f in dataclasses.fields(ProbeConfig)
    }
    plain = {name: list(v) if isinstance(v, tuple) else v for name, v in defaults.items()}
    plain["directions"] = ["forward", "backward"]
    return {key: v for key, v in {**plain, **section}.items() if key not in _NOT_RECORDING}


def _note_attempts(name: str, manifest: Mapping[str, Any], unknown: _Unknown) -> None:
    attempts = manifest.get("attempts")
    for number, attempt in enumerate(attempts if isinstance(attempts, list) else [], 1):
        if isinstance(attempt, dict):
            other = [
                s for s in ("versions", "device", "determinism", "environment") if s in attempt
            ]
            if other:
                unknown(
                    f"attempt {number} of run {name} ran with other {', '.join(other)} than its "
                    f"first one, which was compared: see its run.json"
                )


def _is_known(section: str, a: Any, b: Any, notes: _Notes) -> bool:
    if a is None and b is None:
        notes.neither(section)
    elif a is None or b is None:
        notes.add(f"{section.replace('_', ' ')}: only run {'B' if a is None else 'A'} recorded it")
    return a is not None and b is not None


def _configurations(run: Run) -> dict[str, Any] | None:
    try:
        return run.configurations()
    except OSError:
        return None


def _compare(section: str, a: Any, b: Any, unknown: _Unknown) -> Iterator[_Found]:
    """Yield the paths at which two JSON values differ, with both values, in the order of A."""
    pending: list[tuple[tuple[str, ...], Any, Any]] = [((), a, b)]
    while pending:
        path, left, right = pending.pop()
        if _is_own_directory(path):
            continue
        if left is _ABSENT or right is _ABSENT:
            if section in _ABSENCE_COUNTS:
                yield _name(path), left, right
            else:
                side = "B" if left is _ABSENT else "A"
                unknown(f"{section.replace('_', ' ')}: only run {side} recorded {_name(path)}")
        elif isinstance(left, dict) and isinstance(right, dict):
            if len(path) >= _MAX_DEPTH:
                unknown(f"{section}: nested deeper than {_MAX_DEPTH} levels, not compared there")
                continue
            keys = dict.fromkeys([*left, *right])
            children = [
                ((*path, key), left.get(key, _ABSENT), right.get(key, _ABSENT)) for key in keys
            ]
            pending += reversed(children)
        elif isinstance(left, list) and isinstance(right, list):
            if len(path) >= _MAX_DEPTH:
                unknown(f"{section}: nested deeper than {_MAX_DEPTH} levels, not compared there")
                continue
            items = itertools.zip_longest(left, right, fillvalue=_ABSENT)
            children = [((*path, str(i)), x, y) for i, (x, y) in enumerate(items)]
            if section not in _ABSENCE_COUNTS and len(left) != len(right):
                yield _name(path), left, right
                continue
            pending += reversed(children)
        elif section == "environment" and left == right == WITHHELD:
            unknown(f"environment: {_name(path)} was withheld in both runs, it could be a secret")
        elif not _same(left, right):
            yield _name(path), left, right


def _is_own_directory(path: tuple[str, ...]) -> bool:
    return path[-2:] == (SECTION, _DIRECTORY)


def _name(path: tuple[str, ...]) -> str:
    name = ".".join(path)
    return name if len(name) <= _MAX_NAME else f"{name[:_MAX_NAME]}…"


def _same(a: Any, b: Any) -> bool:
    a, b = number_from_json(a), number_from_json(b)
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return a == b or (a != a and b != b)
    if isinstance(a, (dict, list)) or isinstance(b, (dict, list)):
        return False  # of unlike kinds, or they would have been followed
    return bool(a == b)


def _difference(section: str, name: str, a: Any, b: Any) -> Difference:
    texts = [None if v is _ABSENT else _text(v) for v in (a, b)]
    if texts[0] == texts[1]:  # "1" and 1
        texts = [None if v is _ABSENT else _shortened(repr(v)) for v in (a, b)]
    if section not in ("configurations", "msprobe_config", "versions"):  # None: not set
        texts = [None if v is None else text for v, text in zip((a, b), texts)]
    return Difference(section, name, texts[0], texts[1])


def _text(value: Any) -> str:
    if isinstance(value, str):
        return _shortened(value)
    if value is None or isinstance(value, (bool, int, float)):
        return _shortened(repr(value))
    short = reprlib.Repr()
    short.maxlevel, short.maxdict, short.maxlist, short.maxstring = 3, 4, 8, 60
    try:
        return _shortened(short.repr(value))
    except Exception:
        return f"a {type(value).__name__}"


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}… ({len(text)} characters)"


@dataclass
class _Ranks:
    """The differences of several ranks, the same ones brought together."""

    count: int
    _found: dict[tuple[str, str], dict[tuple[str | None, str | None], list[int]]] = field(
        default_factory=dict
    )

    def add(self, section: str, rank: int, found: Iterable[_Found]) -> None:
        for name, a, b in found:
            one = _difference(section, name, a, b)
            pairs = self._found.setdefault((section, name), {})
            pairs.setdefault((one.a, one.b), []).append(rank)

    def differences(self) -> Iterator[tuple[str, Difference]]:
        for (section, name), pairs in self._found.items():
            shown = list(pairs.items())[:_MAX_PAIRS]
            left = [rank for _, ranks in list(pairs.items())[_MAX_PAIRS:] for rank in ranks]
            for (a, b), ranks in shown:
                yield section, Difference(section, self._of(name, ranks), a, b)
            if left:
                text = "other values on each rank"
                yield section, Difference(section, self._of(name, sorted(left)), text, text)

    def _of(self, name: str, ranks: list[int]) -> str:
        where = "" if len(ranks) == self.count else f"rank {_numbers(ranks)}"
        return f"{name} ({where})" if name and where else name or where


def _numbers(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return f"{shown} and {len(ranks) - 8} more" if len(ranks) > 8 else shown


def _capped(found: dict[str, list[Difference]], unknown: _Unknown) -> Iterator[Difference]:
    """Return at most `MAX_DIFFERENCES`, in the order of the sections, the short ones whole."""
    left, kept = MAX_DIFFERENCES, {}
    for i, section in enumerate(sorted(_SECTIONS, key=lambda name: len(found[name]))):
        kept[section] = found[section][: left // (len(_SECTIONS) - i)]
        left -= len(kept[section])
        more = len(found[section]) - len(kept[section])
        if more:
            unknown(f"{section.replace('_', ' ')}: {more} more differences, which are not listed")
    return itertools.chain.from_iterable(kept[section] for section in _SECTIONS)


def _compare_weights(
    by_rank: list[tuple[int, dict[str, Any], dict[str, Any]]], notes: _Notes
) -> tuple[Weights, ...]:
    found: dict[str, _RoleWeights] = {}
    for rank, a, b in by_rank:
        pair = _section(a, "initial_weights"), _section(b, "initial_weights")
        if not _is_known("initial_weights", *pair, notes):
            continue
        left, right = pair
        assert left is not None
        assert right is not None
        for role in dict.fromkeys([*left, *right]):
            names = left.get(role), right.get(role)
            shown = _shortened(role)
            if isinstance(names[0], dict) and isinstance(names[1], dict):
                together = found.setdefault(shown, _RoleWeights(shown))
                together.add(rank, names[0], names[1], notes.add)
                continue
            for run, theirs, others in zip("AB", names, reversed(names)):
                if theirs is not None and not isinstance(theirs, dict):
                    notes.add(f"initial weights of {shown}: run {run} has none that can be read")
                elif theirs is not None and others is None:
                    notes.add(f"initial weights of {shown}: only run {run} recorded them")
    return tuple(weights.result() for weights in found.values())


class _RoleWeights:
    """The initial weights of one role over the ranks."""

    def __init__(self, role: str) -> None:
        self._role = role
        self._ranks: list[int] = []
        self._compared: dict[str, list[int]] = {}
        self._different: dict[str, list[int]] = {}
        self._only: tuple[dict[str, list[int]], ...] = ({}, {})

    def add(self, rank: int, a: dict[str, Any], b: dict[str, Any], unknown: _Unknown) -> None:
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
        where = f"initial weights of {self._role}"
        if unread:
            unknown(f"{where}: {unread} parameter(s) without a fingerprint in one run")
        if unlike:
            unknown(f"{where}: {unlike} parameter(s) with fingerprints of different algorithms")

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
        name = _name((name,))
        return name if len(ranks) == len(of) else f"{name} (rank {_numbers(ranks)})"


def remark(preflight: Preflight, role: str | None) -> str:
    """Return a sentence or two that explain a divergence by what was given, "" if nothing can.

    Args:
        role: the role whose phase diverged first; None where all networks could be the cause.
    """
    weights = [w for w in preflight.weights if role is None or w.role == role]
    unlike = [w for w in weights if w.different or w.only_in_a or w.only_in_b]
    same = [w for w in weights if w.agree]
    others = _about_settings(preflight.differences)
    if unlike:
        sentence = _about_weights(unlike[0])
        return f"{sentence} {_sentence(others)}".rstrip()
    if not same:
        return _sentence(others)
    whose = same[0].role if len(same) == 1 else f"{len(same)} networks"
    count = sum(w.compared for w in same)
    agree = f"The initial weights of the {whose} agree ({_counted(count, 'parameter')})"
    if others:
        return f"{agree}, but {others}."
    if any(d.section == "seeds" for d in preflight.differences):
        return f"{agree}; of the settings, only the state of Python's random generator differs."
    settings = any(d.section not in ("msprobe_config", "schema") for d in preflight.differences)
    return f"{agree}." if settings else f"{agree}, and no setting that both recorded differs."


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _about_weights(weights: Weights) -> str:
    if weights.different:
        return (
            f"The initial weights of the {weights.role} differ in {len(weights.different)} of "
            f"{_counted(weights.compared, 'parameter')}, first {weights.different[0]}: look at "
            f"the checkpoint that was loaded."
        )
    name, run = (weights.only_in_a[0], "A") if weights.only_in_a else (weights.only_in_b[0], "B")
    count = len(weights.only_in_a) + len(weights.only_in_b)
    return (
        f"The networks of the {weights.role} do not have the same parameters: {count} stand in "
        f"one run alone, first {name} in {run}."
    )


def _about_settings(differences: Iterable[Difference]) -> str:
    """Return the clause on what most probably matters: a seed, determinism, else a count."""
    by_section: dict[str, list[Difference]] = {}
    for difference in differences:
        by_section.setdefault(difference.section, []).append(difference)
    for difference in by_section.get("seeds", []):
        if not difference.name.startswith(_STATES):
            name = "" if difference.name == "mindspore" else f" {difference.name}"
            return f"the seed{name} differs: {_against(difference)}"
    for difference in by_section.get("seeds", []):
        if difference.name.startswith("numpy_state"):
            return "numpy's random generator was in another state"
    for difference in by_section.get("determinism", []):
        return f"the determinism setting {difference.name} differs: {_against(difference)}"
    explaining = ("versions", "configurations", "device", "world", "environment")
    rest = [d for section in explaining for d in by_section.get(section, [])]
    if not rest:
        return ""
    first = f"{rest[0].section} {rest[0].name}: {_against(rest[0])}"
    return f"{_counted(len(rest), 'setting')} differ{'s' * (len(rest) == 1)}, first {first}"


def _against(difference: Difference) -> str:
    a, b = (
        "not set" if text is None else text if len(text) <= 60 else f"{text[:60]}…"
        for text in (difference.a, difference.b)
    )
    return f"{a} against {b}"
