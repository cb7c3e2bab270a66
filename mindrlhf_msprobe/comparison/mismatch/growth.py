"""In which cells error begins rather than being passed on, and how it grows on its way."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np

from mindrlhf_msprobe.comparison.mismatch.rows import Aligned
from mindrlhf_msprobe.comparison.pairing.names import NUMBER, Name, of_any_layer
from mindrlhf_msprobe.findings.mismatch import Stage, Token
from mindrlhf_msprobe.sequences.calls import TokenRows
from mindrlhf_msprobe.storage.records import is_around

#: Times what entered: what one cell may make of it.
GROWTH = 16.0
_OF_ALL = 4.0  # times what entered: what all rows of a sketched value may make of it
_USUAL = 4.0  # times what cells of its kind usually make of it
_LASTING = 4.0  # times what rounding explains around a cell: as far apart as that is passed on
_DILUTED = 8.0  # by so much what is added to it may shorten an error that is passed on
_MANY_SUMS = 8  # of a sketch; of fewer, that of a row may be near 0 by chance: all rows count
_NEVER = 1e-10  # as good as: the chance of one row
_ALONE = 2.0  # times its limit: a row of a sketch that is further apart counts by itself
_OF_A_KIND = 3  # others of a kind, from which on what is usual is known
_MOST_ROWS = 0.5  # of those in which a mask is apart: so many must show it where it is used
_WORST = 5
_INSIDE_A_LAYER = re.compile(r"(?:[^.]+\.)*[0-9]+\.")

#: Of each kind of cells: the values that were apart when they entered, and how they grew.
_Growths = dict[tuple[str, ...], list[tuple[Name, float]]]


class ErrorGrowth:
    """The values of a network, added in causal order.

    What is kept of each value are its summary, and two bytes of each token: how far it is apart.

    Args:
        tokens: the rows of the rollout.
        shown: makes of a row and its distance what a reader sees of it.

    Attributes:
        of_layers: what layers, and cells beside them, return: the relative distance of each
            token's row, float32 [tokens]; NaN where it was not compared.
    """

    def __init__(self, tokens: TokenRows, shown: Callable[[int, float], Token]) -> None:
        self.of_layers: dict[Name, np.ndarray] = {}
        self._stages: dict[Name, Stage] = {}
        self._shown = shown
        self._tokens = tokens
        self._before = np.zeros(tokens.count)
        self._few = False  # whether distances are estimated from few sums of a sketch
        self._fewest = 0  # of the sums that any distance was estimated from
        self._inputs: dict[tuple[str, int], np.ndarray] = {}
        self._begun: dict[tuple[str, int], np.ndarray] = {}
        self._new: dict[Name, np.ndarray] = {}
        self._limits: dict[Name, np.ndarray] = {}
        self._apart: dict[Name, np.ndarray] = {}
        self._made: list[Name] = []
        self._masks: dict[Name, Name] = {}  # each mask, and the first that is apart there

    def add(self, value: Aligned, allowed: float, *, made: bool = True, mask: bool = False) -> None:
        """Add the next value.

        Args:
            allowed: the relative distance of a row that rounding in its cell explains.
            made: whether it is new: an input may be what another cell was given or returned.
            mask: whether it says which tokens may be seen. What it lets in does not show in what
                is computed before it is used, nor at all where something else hides that.
        """
        relative, at = value.distances.relative(), value.token
        apart = np.zeros(len(self._before))
        apart[at] = relative
        cell = (value.name.cell, value.name.nth)
        known = self._inputs.get(cell)
        if value.name.io == "input":
            entered = self._before[at]
            self._begun.setdefault(cell, self._before.copy())
            if not mask:
                self._inputs[cell] = apart if known is None else np.maximum(known, apart)
        else:
            entered = (self._before if known is None else known)[at]
        if bool((entered > allowed).any()):  # attention mixes all up to a token of its sequence
            most = np.zeros(len(self._before))
            most[at] = entered
            for tokens in self._in_order:
                most[tokens] = np.maximum.accumulate(most[tokens])
            entered = most[at]
        entered, begins, limits = self._begins(relative, entered, allowed, value.distances.sampled)
        self._keep(value.name, at, relative, mask=mask)
        if made and value.name.io == "input" and not mask:
            self._made.append(value.name)
        order = _furthest(relative)
        worst = zip(at[order].tolist(), relative[order].tolist())
        self._stages[value.name] = Stage(
            *(value.name.cell, value.name.io, value.name.path, value.name.nth),
            _root_mean_square(entered),
            _root_mean_square(relative),
            float(relative.max()),
            allowed,
            len(relative),
            int(value.distances.unequal.sum()),
            int(begins.sum()),
            value.dtypes,
            tuple(self._shown(row, far) for row, far in worst if far),
        )
        if begins.any():
            self._new[value.name] = at[begins]
            self._limits[value.name] = limits[begins]
        if value.name.io == "output" and cell in self._begun:
            self._before = self._begun.pop(cell)  # what was apart inside shows in what it returns
        if not mask:
            np.maximum(self._before, apart, out=self._before)

    def _begins(
        self, relative: np.ndarray, entered: np.ndarray, allowed: float, sampled: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return what entered each row, whether an error begins in it, and up to where it is not.

        Args:
            sampled: from how many sums of a sketch the distances were estimated; 0: from none.
        """
        self._few |= 0 < sampled < _MANY_SUMS
        if sampled:
            self._fewest = min(self._fewest or sampled, sampled)
        by_itself = allowed + GROWTH * _surely(self._fewest) * entered
        if self._few:
            entered = np.maximum(entered, _root_mean_square(entered))
        limits = allowed + GROWTH * entered
        begins = ~(relative <= limits)
        if sampled:
            alone = ~(relative <= _ALONE * by_itself)
            # All rows together: estimates of single ones may be far off.
            explained = _OF_ALL * (allowed + _root_mean_square(entered))
            together = not _root_mean_square(relative) <= explained
            begins = alone | begins if together else alone
            limits = np.where(alone, by_itself, limits)
        return entered, begins, limits

    def _keep(self, name: Name, at: np.ndarray, relative: np.ndarray, *, mask: bool) -> None:
        """Keep how far the rows of a value are apart."""
        count = len(self._before)
        found = np.full(count, np.nan, np.float16)
        with np.errstate(over="ignore"):
            found[at] = relative
        self._apart[name] = found
        if mask:
            same = (n for n in self._masks if np.array_equal(self._apart[n], found, True))
            self._masks[name] = next(same, name)
        elif name.io == "output" and not _INSIDE_A_LAYER.match(name.cell):
            self.of_layers[name] = np.full(count, np.nan, np.float32)
            self.of_layers[name][at] = relative

    @cached_property
    def _in_order(self) -> list[np.ndarray]:
        """The tokens of each sequence, in their order."""
        sequence, position = self._tokens.sequence, self._tokens.position
        known = np.flatnonzero(sequence >= 0)
        order = known[np.lexsort((position[known], sequence[known]))]
        return [*np.split(order, np.flatnonzero(np.diff(sequence[order])) + 1)]

    def stages(self) -> dict[Name, Stage]:
        """Return all values; of errors that begin, only those not usual for their kind."""
        usual: _Growths = defaultdict(list)
        for name, stage in self._stages.items():
            if stage.entered > stage.allowed:
                usual[kind_of(name)].append((name, stage.growth))
        found = {name: self._judged(name, stage, usual) for name, stage in self._stages.items()}
        masks = [name for name in self._masks if found[name].arising and found[name].lasting]
        for name, stage in found.items():
            for mask in masks if stage.arising and name not in self._masks else ():
                users = self._users(mask)  # what begins there may be what the mask lets in
                given = any(name.cell == user or is_around(user, name.cell) for user in users)
                if given and bool(self._touched(mask)[self._new[name]].all()):
                    found[name] = replace(stage, arising=0)
                    break
        return found

    def _judged(self, name: Name, stage: Stage, usual: _Growths) -> Stage:
        """Return a summary without errors that usually begin there, and whether others last."""
        if not stage.arising:
            return stage
        if stage.entered > stage.allowed:
            others = [growth for other, growth in usual.get(kind_of(name), []) if other != name]
            if len(others) >= _OF_A_KIND and stage.growth <= _USUAL * float(np.median(others)):
                return replace(stage, arising=0)
        if name in self._masks:
            new = self._masks[name] == name
            return replace(stage, arising=stage.arising * new, lasting=new and self._is_used(name))
        return replace(stage, lasting=self._lasts(name))

    def _users(self, mask: Name) -> list[str]:
        """Return the cells that are given a mask, in causal order."""
        same = [n for n, first in self._masks.items() if first == self._masks[mask]]
        return [name.cell for name in same if name.io == "input"]

    def _is_used(self, mask: Name) -> bool:
        """Return whether most rows in which a mask is apart are so where it is used first.

        Where they are not, something else hides what it lets in, such as lengths that the operator
        is given.
        """
        order = [*self._stages]
        later = order[order.index(mask) + 1 :]
        users = self._users(mask)
        for outer, inner in pairwise(users):  # the innermost of those around each other
            if not is_around(outer, inner):
                users = users[: users.index(inner)]
                break
        shown = [
            n
            for n in (later if users else ())
            if (n.cell == users[-1] and n.io == "output")
            or (n in self._made and is_around(users[-1], n.cell))
        ]
        touched = self._touched(mask)
        seen = False
        for name in shown:
            apart = self._apart[name].astype(np.float32)
            far = ~(apart <= self._stages[name].allowed)
            known = ~np.isnan(apart) & ~np.isnan(self._apart[mask])
            differing = known[self._new[mask]]
            seen |= bool(differing.any())
            most = differing.any() and far[self._new[mask]][differing].mean() >= _MOST_ROWS
            if most and not (far & known & ~touched).any():
                return True
        return not seen and self._lasts(mask)

    def _touched(self, mask: Name) -> np.ndarray:
        """Return the tokens at which a mask is apart, and those behind them, bool [tokens]."""
        sequence, position = self._tokens.sequence, self._tokens.position
        first = np.full(int(sequence.max(initial=-1)) + 2, np.iinfo(np.int64).max)
        begins = self._new[mask]
        np.minimum.at(first, sequence[begins], position[begins])
        return position >= first[sequence]  # of padding the last one, which none is at

    def apart(self, name: Name) -> np.ndarray:
        """Return how far each token's row is apart in a value, float16 [tokens]; NaN of others."""
        return self._apart[name]

    def begins_at(self, name: Name) -> np.ndarray:
        """Return the tokens whose rows begin to be apart in a value, int64."""
        return self._new.get(name, np.zeros(0, np.int64))

    def _lasts(self, name: Name) -> bool:
        """Return whether rows in which an error began are still apart where it is used, and behind.

        It is not where the code around makes something that agrees of it, such as a product of
        two vectors that were rotated by one angle: the last that this code hands to a cell, or
        what a cell around it returns, then agrees.
        """
        order = [*self._stages]
        later = {*order[order.index(name) + 1 :]}
        around = [other for other in order if is_around(other.cell, name.cell)]
        nearest = max((other.cell for other in around), key=len, default="root")
        inside = [n for n in self._made if n in later and is_around(nearest, n.cell)]
        uses = [n for n in inside if n.cell != name.cell][-1:]
        returned = [other for other in around if other.io == "output" and other in later]
        rows, limits = self._new[name], self._limits[name]
        # A layer that is given a value may return rows that agree, as no other value does. Such as
        # rotary embeddings that are counted from another position: what is wrong in a later layer
        # does not come of them.
        for user in order[order.index(name) + 1 :]:
            if user.io != "input" or not NUMBER.fullmatch(user.cell.rpartition(".")[2]):
                continue
            if np.array_equal(self._apart[user], self._apart[name], equal_nan=True):
                made = [n for n in later if n[:3] == (user.cell, user.nth, "output")]
                far = [self._apart[n][rows].astype(np.float32) for n in made]
                if made and all(bool((of <= limits).all()) for of in far):
                    return False
                break
        for other in (*uses, *returned):
            apart = self._apart[other][rows].astype(np.float32)
            least = np.minimum(
                _LASTING * self._stages[other].allowed,
                self._apart[name][rows].astype(np.float32) / _DILUTED,
            )
            still = ~(apart <= np.maximum(limits, least))
            rows, limits = rows[still], limits[still]
        return bool(len(rows))


@lru_cache(maxsize=64)
def _surely(sums: int) -> float:
    """Return how many times its estimate from sums of a sketch a distance is at most.

    But for one row in ten thousand millions. Its square is spread as χ² of k degrees of freedom
    divided by k, of which the lower tail up to x is less than (x/2)^(k/2) / Γ(k/2 + 1). Of few sums
    it is so large that only a row that is equal by its fingerprint, at a distance of 0, is known.
    """
    if not sums:
        return 1.0
    half = sums / 2
    return math.sqrt(half / math.exp((math.log(_NEVER) + math.lgamma(half + 1)) / half))


def _furthest(relative: np.ndarray) -> np.ndarray:
    """Return which rows are furthest apart, the furthest first; of equal ones the first."""
    if len(relative) > _WORST:
        least = np.partition(relative, len(relative) - _WORST)[-_WORST]
        beyond, equal = np.flatnonzero(relative > least), np.flatnonzero(relative == least)
        rows = np.concatenate([beyond, equal[: _WORST - len(beyond)]])
    else:
        rows = np.arange(len(relative))
    return rows[np.argsort(-relative[rows], kind="stable")]


def kind_of(name: Name) -> tuple[str, ...]:
    """Return what cells of all layers have in common."""
    return of_any_layer(name.cell), name.io, name.path


def _root_mean_square(values: np.ndarray) -> float:
    if not np.isfinite(values).all():
        return math.inf
    return float(np.sqrt(np.mean(np.square(values)))) if values.size else 0.0
