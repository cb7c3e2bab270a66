"""How the ranks of a run divide the work: the rank grid, and how records are cut over its axes."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.common.patterns import PatternError, pattern
from mindrlhf_msprobe.common.printable import few_numbers
from mindrlhf_msprobe.common.yaml_file import read_yaml
from mindrlhf_msprobe.errors import ConfigError
from mindrlhf_msprobe.storage.foreign.checkpoints.stored import CheckpointError
from mindrlhf_msprobe.storage.foreign.checkpoints.strategy import Cut, Strategy, read_strategies
from mindrlhf_msprobe.storage.leaves import COPY, MEAN, SUM, Shard
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, cell_name

#: Nothing says what of a record is at each place of an axis.
ANY = "any"
DATA, TENSOR, PIPELINE, CONTEXT, EXPERT = "dp", "tp", "pp", "cp", "ep"
ZIGZAG = "zigzag"
_HOW = (COPY, SUM, MEAN)
_KEYS = {"axes", "ranks", "shards", "order", "shift", "scale", "strategy", "micro_batches"}
_STRATEGIES = (".ckpt", ".json")
_MOST_RANKS = 1 << 16
_MOST_DIMENSION = 32

#: By axis: a dimension, COPY, SUM, MEAN, or ANY where nothing says it.
Modes = Mapping[str, "int | str"]


@dataclass(frozen=True)
class Shift:
    """The numbers in cells' names that each place of an axis counts from zero.

    Attributes:
        axis: the axis.
        after: the part of a name before the number, e.g. `layers`.
        by: what is added at each place of the axis.
    """

    axis: str
    after: str
    by: tuple[int, ...]

    def rename(self, cell: str, place: int) -> str:
        """Return the name in the whole network of a cell at one place of the axis."""
        if not self.by[place]:
            return cell
        number = re.compile(rf"((?:^|\.){re.escape(self.after)}\.)([0-9]{{1,9}})(?=\.|$)")
        return number.sub(lambda m: f"{m[1]}{int(m[2]) + self.by[place]}", cell, count=1)


@dataclass(frozen=True)
class Layout:
    """How the ranks of a run divide the work.

    Attributes:
        axes: name → size, the outermost first.
        places: rank → its place along each axis.
        shards: (pattern of records' names, axis → how they are cut over it), the first one counts.
        zigzag: axes whose places hold two chunks each, one from the front and one from the end.
        shifts: numbers in names that are counted anew at each place of an axis.
        scales: (pattern of records' names, by what their elements are multiplied), likewise.
        micro_batches: whether the gradients of a batch are the MEAN or the SUM of those of its
            micro-batches; None: not said.
        strategy: by stage and name, how parameters are cut; the ranks of a stage follow each other.
    """

    axes: Mapping[str, int]
    places: Mapping[int, tuple[int, ...]]
    shards: tuple[tuple[str, Mapping[str, int | str]], ...] = ()
    zigzag: frozenset[str] = frozenset()
    shifts: tuple[Shift, ...] = ()
    scales: tuple[tuple[str, float], ...] = ()
    strategy: Strategy = field(default_factory=dict)
    micro_batches: str | None = None
    _known: dict[str, Mapping[str, int | str]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @classmethod
    def from_sizes(cls, axes: Mapping[str, int]) -> Layout:
        """Return the layout of ranks that are counted row-major, the last axis fastest."""
        places = itertools.product(*(range(n) for n in axes.values()))
        return cls(dict(axes), dict(enumerate(places)))

    @classmethod
    def of_one(cls, *ranks: int) -> Layout:
        """Return the layout of a run of one rank, which has everything; it has no axes."""
        return cls({}, dict.fromkeys(ranks, ()))

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.places)

    @cached_property
    def cut(self) -> tuple[str, ...]:
        """The axes that have more than one place."""
        return tuple(axis for axis, size in self.axes.items() if size > 1)

    def place(self, rank: int, axis: str) -> int:
        """Return the place of a rank along an axis."""
        return self.places[rank][[*self.axes].index(axis)]

    def rule(self, name: str) -> Mapping[str, int | str]:
        """Return what the first pattern that matches says of a record; nothing where none does."""
        if name not in self._known:
            source = self.pattern_of(name)
            self._known[name] = {} if source is None else dict(self.shards)[source]
        return self._known[name]

    def pattern_of(self, name: str) -> str | None:
        """Return the first pattern that matches the name of a record; None where none does."""
        return next((source for source, _ in self.shards if pattern(source).search(name)), None)

    def cut_of(self, parameter: str, rank: int) -> tuple[Cut | Message, int] | None:
        """Return how the strategy cuts a parameter, and the device of its stage that a rank is.

        None where it does not say it.
        """
        each = self.size // max(len(self.strategy), 1)
        stage, device = divmod(rank, each)
        cuts = self.strategy.get(stage, {})
        if parameter in cuts:
            return cuts[parameter], device
        # A wrapper around the network has a part of the name.
        found = [
            cut
            for name, cut in cuts.items()
            if name.endswith(f".{parameter}") or parameter.endswith(f".{name}")
        ]
        return (found[0], device) if len(found) == 1 else None

    def modes(self, name: str, io: str, shard: Shard | None = None) -> dict[str, int | str]:
        """Return how a record is cut over each axis of more than one place.

        Where no pattern says it, the record itself does. Else parameters have copies over dp and
        cp, their gradients are a mean over them, and what else there is follows from the shapes.
        """
        how = self.rule(name) or {
            axis: of.how  # of a tensor that is spread over ranks
            for axis, of in (shard.axes.items() if shard is not None else ())
            if of.size == self.axes.get(axis) and (of.how in _HOW or isinstance(of.how, int))
        }
        gradient = f".{PARAMETERS_GRAD}." in name
        rest: dict[str, int | str] = {}
        for axis in self.cut:
            mode: int | str = ANY
            if axis in (DATA, CONTEXT) and gradient:
                mode = MEAN
            elif axis in (DATA, CONTEXT) and io == "parameters":
                mode = COPY
            rest[axis] = how.get(axis, mode)
        order = [axis for axis in how if axis in rest]
        return {axis: rest[axis] for axis in [*order, *(a for a in rest if a not in how)]}

    def times(
        self, name: str, modes: Modes, divided: frozenset[str], alone: frozenset[str]
    ) -> float:
        """Return by what a record's elements are multiplied.

        Where no pattern says it: the loss of a rank is a mean over its own samples or tokens, so a
        gradient of what a rank alone has counts as one part of the mean over all.

        Args:
            divided: the axes over which samples or tokens are divided.
            alone: the axes of which one place has the record, as an expert's.
        """
        for source, times in self.scales:
            if pattern(source).search(name):
                return times
        backward, weights = ".backward." in name, f".{PARAMETERS_GRAD}." in name
        parts = 1
        for axis in self.cut:
            own = axis in divided and (isinstance(modes.get(axis), int) or axis in alone)
            if own and (backward or (weights and axis == EXPERT)):
                parts *= self.axes[axis]
        return 1 / parts

    def shifted(self, entry: str, rank: int) -> str:
        """Return what an entry of a rank is called in the whole network."""
        if not self.shifts:
            return entry
        cell = name = cell_name(entry)
        for shift in self.shifts:
            name = shift.rename(name, self.place(rank, shift.axis))
        return entry if name == cell else entry.replace(f".{cell}.", f".{name}.", 1)


def load_layouts(
    path: str | Path,
    ranks: tuple[int, int],
    recorded: tuple[Layout | None, Layout | None] = (None, None),
) -> tuple[Layout | None, Layout | None]:
    """Read the layouts of two runs from a YAML file, or from a strategy file of MindSpore.

    Under `a` and `b` stand the layouts of each; one at the top is that of every run with as many
    ranks as its grid has. A strategy file is that of every run of several ranks that recorded its
    grid.

    Args:
        ranks: how many ranks each run has.
        recorded: their grids, as they recorded them.

    Returns:
        None for a run that is not named.

    Raises:
        ConfigError: the file cannot be read, or holds no layout.
    """
    if Path(path).suffix in _STRATEGIES:
        known = [None if one is None else _by_strategy(path, one, path) for one in recorded]
        if known == [None, None]:
            raise _wrong(path, "layout.strategy_alone")
        return known[0], known[1]
    content = read_yaml(Path(path), message("layout.file"), message("layout.keys"))
    if {*content} & {"a", "b"}:
        if unknown := {*content} - {"a", "b"}:
            raise _wrong(path, "layout.unknown_key", key=min(map(str, unknown)), known="a, b")
        a, b = (_layout(path, content[s], s) if s in content else None for s in "ab")
        return a, b
    one = _layout(path, content, "")
    a, b = (one if count == one.size else None for count in ranks)
    if a is b is None:
        raise _wrong(path, "layout.fits_neither", size=one.size, a=ranks[0], b=ranks[1])
    return a, b


def _wrong(path: str | Path, code: str, **params: Any) -> ConfigError:
    return ConfigError.saying("layout.wrong", path=str(path), why=message(code, **params))


def _layout(path: str | Path, content: Any, side: str) -> Layout:
    if not isinstance(content, Mapping) or not isinstance(content.get("axes"), Mapping):
        raise _wrong(path, "layout.no_axes", side=side)
    if unknown := {*map(str, content)} - _KEYS:
        known = ", ".join(sorted(_KEYS))
        raise _wrong(path, "layout.unknown_key", key=min(unknown), known=known)
    axes = dict(content["axes"])
    for axis, size in axes.items():
        if not isinstance(axis, str) or type(size) is not int or size < 1:
            raise _wrong(path, "layout.axis", axis=str(axis), size=repr(size))
    if not axes or math.prod(axes.values()) > _MOST_RANKS:
        raise _wrong(path, "layout.no_axes", side=side)
    orders = content.get("order") or {}
    for axis, order in orders.items() if isinstance(orders, Mapping) else [(orders, "")]:
        if axis not in axes or order != ZIGZAG:
            raise _wrong(path, "layout.order", axis=str(axis), order=repr(order), axes=[*axes])
    whole = Layout.from_sizes(axes)
    how, reductions = content.get("micro_batches"), {None: None, "mean": MEAN, "sum": SUM}
    if not isinstance(how, (str, type(None))) or how not in reductions:
        raise _wrong(path, "layout.micro_batches", how=repr(how))
    found = Layout(
        axes,
        _places(path, content["ranks"], axes) if "ranks" in content else whole.places,
        tuple(_rules(path, content.get("shards") or {}, axes)),
        frozenset(orders),
        tuple(_shifts(path, content.get("shift") or {}, axes)),
        tuple(_scales(path, content.get("scale") or {})),
        micro_batches=reductions[how],
    )
    given = content.get("strategy")
    return found if given is None else _by_strategy(path, found, given)


def _by_strategy(path: str | Path, whole: Layout, given: Any) -> Layout:
    """Return a layout with what strategy files, given by paths beside `path`, say of parameters."""
    files = _strategy_files(path, given)
    try:
        root = Path(os.path.commonpath([file.absolute().parent for file in files]))
        strategy = read_strategies([file.absolute() for file in files], root)
    except CheckpointError as error:
        raise _wrong(path, "layout.strategy_file", why=error.said) from None
    except (OSError, ValueError) as error:
        raise _wrong(path, "layout.strategy_file", why=str(error)) from None
    devices = {
        math.prod(c.devices) for of in strategy.values() for c in of.values() if isinstance(c, Cut)
    }
    stages = len(strategy)
    if [*sorted(strategy)] != [*range(stages)] or {n * stages for n in devices} - {whole.size}:
        sizes = sorted(n * stages for n in devices)
        raise _wrong(path, "layout.strategy_ranks", size=whole.size, sizes=few_numbers(sizes))
    return replace(whole, strategy=strategy)


def _strategy_files(path: str | Path, given: Any) -> list[Path]:
    """Return the strategy files that are given by name, or by the name of their folder."""
    names = given if isinstance(given, list) else [given]
    if not names or not all(isinstance(name, (str, Path)) for name in names):
        raise _wrong(path, "layout.strategy", given=repr(given))
    around = Path() if names == [path] else Path(path).parent
    files: list[Path] = []
    for file in (around / name for name in names):
        if file.is_dir():
            files += (one for one in sorted(file.iterdir()) if one.suffix in _STRATEGIES)
        else:
            files.append(file)
    if not files:
        raise _wrong(path, "layout.strategy", given=repr(given))
    return files


def _places(path: str | Path, ranks: Any, axes: Mapping[str, int]) -> dict[int, tuple[int, ...]]:
    """Return the place of each rank, which is given axis by axis."""
    found: dict[int, tuple[int, ...]] = {}
    by_place: dict[tuple[int, ...], int] = {}
    given: list[tuple[Any, Any]] = [*ranks.items()] if isinstance(ranks, Mapping) else [(ranks, 0)]
    for rank, at in given:
        usable = type(rank) is int and rank >= 0 and isinstance(at, Mapping)
        if not usable or {*at} - {*axes}:
            raise _wrong(path, "layout.place", rank=repr(rank), axes=[*axes])
        place = tuple(at.get(axis, 0) for axis in axes)
        if not all(type(n) is int and 0 <= n < size for n, size in zip(place, axes.values())):
            raise _wrong(path, "layout.place", rank=repr(rank), axes=[*axes])
        if place in by_place:
            both = few_numbers([by_place[place], rank])
            raise _wrong(path, "layout.same_place", ranks=both, place=_shown(axes, place))
        found[rank] = place
        by_place[place] = rank
    for place in itertools.product(*(range(n) for n in axes.values())):
        if place not in by_place:
            raise _wrong(path, "layout.no_rank", place=_shown(axes, place))
    return found


def _shown(axes: Mapping[str, int], place: tuple[int, ...]) -> str:
    return ", ".join(f"{axis} {n}" for axis, n in zip(axes, place))


def _rules(
    path: str | Path, rules: Any, axes: Mapping[str, int]
) -> Iterator[tuple[str, dict[str, int | str]]]:
    if not isinstance(rules, Mapping):
        raise _wrong(path, "layout.rule", rule=repr(rules), axes=[*axes])
    for source, how in rules.items():
        if not isinstance(source, str) or not isinstance(how, Mapping) or {*how} - {*axes}:
            raise _wrong(path, "layout.rule", rule=f"{source}: {how}", axes=[*axes])
        _check_pattern(path, source)
        for value in how.values():
            number = type(value) is int and -_MOST_DIMENSION <= value < _MOST_DIMENSION
            if not number and value not in _HOW:
                raise _wrong(path, "layout.rule", rule=f"{source}: {how}", axes=[*axes])
        yield source, dict(how)


def _shifts(path: str | Path, shifts: Any, axes: Mapping[str, int]) -> Iterator[Shift]:
    given: list[tuple[Any, Any]]
    given = [*shifts.items()] if isinstance(shifts, Mapping) else [(shifts, {})]
    for axis, shift in given:
        by_name: list[tuple[Any, Any]]
        by_name = [*shift.items()] if isinstance(shift, Mapping) and shift else [("", None)]
        for after, by in by_name:
            usable = axis in axes and after and isinstance(by, list) and len(by) == axes[axis]
            if not usable or not all(type(n) is int and 0 <= n < 10**6 for n in by):
                raise _wrong(path, "layout.shift", axis=str(axis), shift=repr(shift))
            yield Shift(axis, str(after), tuple(by))


def _scales(path: str | Path, scales: Any) -> Iterator[tuple[str, float]]:
    given: list[tuple[Any, Any]] = [*scales.items()] if isinstance(scales, Mapping) else [("", 0)]
    for source, times in given:
        number = type(times) in (int, float) and 0 < times < math.inf
        if not (isinstance(source, str) and number):
            raise _wrong(path, "layout.scale", scale=f"{source}: {times!r}")
        _check_pattern(path, source)
        yield source, float(times)


def _check_pattern(path: str | Path, source: str) -> None:
    try:
        pattern(source)
    except PatternError as error:
        given = {"where": "shards", "pattern": source}
        raise _wrong(path, "error.rule_pattern", **given, why=error.said) from None
