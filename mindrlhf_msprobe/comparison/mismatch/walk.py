"""Both networks side by side: every value that both have, measured by token in causal order."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.comparison.judging.texts import Decode
from mindrlhf_msprobe.comparison.mismatch.conclusion.births import Way
from mindrlhf_msprobe.comparison.mismatch.names import Name
from mindrlhf_msprobe.comparison.mismatch.rows.keyed import (
    Columns,
    LetsIn,
    align_keys,
    columns_of,
)
from mindrlhf_msprobe.comparison.mismatch.rows.numbers_given import Numbers, other_numbers
from mindrlhf_msprobe.comparison.mismatch.rows.pairs import Aligned, Source, Unfit, align
from mindrlhf_msprobe.comparison.mismatch.rows.precision import Precision, allowed, shown_dtype
from mindrlhf_msprobe.comparison.mismatch.sides import Side, Value
from mindrlhf_msprobe.comparison.mismatch.weights.fused import Fused
from mindrlhf_msprobe.comparison.mismatch.weights.mapping import NO_MAPPING, CellMapping
from mindrlhf_msprobe.comparison.mismatch.weights.weights import Weights, compare_weights
from mindrlhf_msprobe.comparison.pairing.frameworks.presets import preset_names
from mindrlhf_msprobe.comparison.pairing.names import match_names
from mindrlhf_msprobe.comparison.tokens.coverage import Coverage, coverage
from mindrlhf_msprobe.comparison.tokens.matching import Matched, match
from mindrlhf_msprobe.findings.mismatch import Stage, Token
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError

_SHOWN_TOKENS = 8  # of a text, the last one being the token that is meant
_LEAST_EXTREMES = 4  # that differ: one in 10^15 times four numbers of float32 are such of float16
_LOOKED_AT = 64  # rows whose values are looked at for a lower precision


class Walk:
    """One step of one rank: the rollout's phase against the training's.

    Attributes:
        matched: which rows are the same token.
        coverage: how many of the tokens that there are were aligned.
        mapping: what a user says of names.
        weights: the parameters of both.
        stages: every value that was measured, by its name in the training network.
        not_compared: those that both have and that could not be, unless they are one tensor in all
            calls of both.
        masks: those of them that are masks, and what they let in.
    """

    def __init__(
        self,
        rollout: Side,
        training: Side,
        mapping: CellMapping = NO_MAPPING,
        decode: Decode | None = None,
    ) -> None:
        self.rollout, self.training = rollout, training
        self.matched = match(rollout.tokens, training.tokens)
        self.coverage = _coverage(rollout, training, self.matched)
        self.mapping = mapping
        rules = (*mapping.names, *preset_names(rollout.cells, training.cells))
        self.names = match_names(rollout.cells, training.cells, rules)
        self.weights: Weights = compare_weights(
            rollout.parameters, training.parameters, self.names, mapping.fused
        )
        self.not_compared: list[tuple[Name, Message]] = []
        self.precision = (Precision(rollout), Precision(training))
        self.tokens = rollout.tokens.rows
        self._decode = decode
        numbers = np.array(rollout.tokens.samples or (), np.int64)
        others = np.flatnonzero(numbers < 0)
        numbers[others] = len(rollout.samples) + np.arange(len(others))
        self._samples = numbers if len(numbers) else np.zeros(1, np.int64)
        self._sources: dict[Name, tuple[Source, Source]] = {}
        self._unmeasured: dict[Name, tuple[Source, Source]] = {}
        self._seen: set[int] = set()
        self.masks: dict[Name, LetsIn] = {}
        self._masks_measured: dict[tuple[bytes, bytes], tuple[Aligned, LetsIn | None]] = {}
        self._way = Way(self.tokens, self.token)
        for name, mine, theirs in self._values():
            self._measure(name, mine, theirs)
        self.stages: dict[Name, Stage] = self._way.stages()

    def token(self, row: int, apart: float = 0.0) -> Token:
        """Return what a reader sees of a row of the rollout."""
        tokens = self.tokens
        sequence, position = int(tokens.sequence[row]), int(tokens.position[row])
        ids = self.rollout.tokens.sequences[sequence]
        text = ""
        if self._decode is not None:
            text = self._decode(ids[max(0, position + 1 - _SHOWN_TOKENS) : position + 1].tolist())
        call = int(tokens.call[row])
        role = self.role(row)
        if role == "response" and self.is_at_border(row):
            role = "block"
        if role == "prompt" and position == 0 and sequence in self.behind_padding:
            role = "padding"
        place = self.sample(sequence), position, int(ids[position]), call
        return Token(*place, role, apart, text)

    def sample(self, sequence: int) -> int:
        """Return the number of a sequence's sample: its row in the saved prompts and responses.

        Where they were not saved as token ids, or it is none of them, the numbers behind these go
        on in the order in which the rollout began its sequences.
        """
        return int(self._samples[sequence])

    def samples(self, rows: np.ndarray) -> np.ndarray:
        """Return the numbers of the samples of rows of the rollout, int64 [rows]; -1 of padding."""
        sequence = self.tokens.sequence[rows]
        return np.where(sequence >= 0, self._samples[sequence], sequence)

    def prompt(self, sequence: int) -> int:
        """Return how many tokens of a sequence of the rollout are its prompt."""
        begun, sample = self.rollout.tokens.begun[sequence], self.sample(sequence)
        if begun or sample >= len(self.rollout.samples):
            return begun
        return len(self.rollout.samples[sample].prompt)

    def role(self, row: int) -> str:
        """Return what the token of a row is: prompt, first (behind the prompt) or response."""
        position = int(self.tokens.position[row])
        prompt = self.prompt(int(self.tokens.sequence[row]))
        return "prompt" if position < prompt else "first" if position == prompt else "response"

    @cached_property
    def behind_padding(self) -> set[int]:
        """The sequences of the rollout that either network is given behind padding."""
        mine, theirs = (
            set().union(*(call.behind_padding() for call in side.tokens.calls))
            for side in (self.rollout, self.training)
        )
        partners = self.matched.sequences.tolist()
        return mine | {number for number, other in enumerate(partners) if other in theirs}

    def is_at_border(self, row: int) -> bool:
        """Return whether a token is the first of a block of a paged cache, behind another one."""
        size, position = self.rollout.tokens.block, int(self.tokens.position[row])
        return size is not None and position > 0 and position % size == 0

    @property
    def of_layers(self) -> Mapping[Name, np.ndarray]:
        """How far each token's row is apart in what layers return; see `Way.of_layers`."""
        return self._way.of_layers

    def next_token(self, sequence: int, position: int) -> int:
        """Return the training's token behind one of the rollout; -1 where there is none."""
        partner = int(self.matched.sequences[sequence])
        tokens = self.training.tokens.sequences[partner] if partner >= 0 else ()
        return int(tokens[position + 1]) if position + 1 < len(tokens) else -1

    def shift(self, name: Name) -> int | None:
        """Return of which other position the rollout's rows are, where they are born apart.

        Returns:
            1 if each is the training's row of the next position of its sequence, -1 of the one
            before, and so on up to 2; None if they are none of these.
        """
        mine, theirs = self._sources[name]
        rows = self._way.born_at(name)
        if not (mine.has_elements and theirs.has_elements):
            return None
        return next((by for by in (1, -1, 2, -2) if self._is_shifted(mine, theirs, rows, by)), None)

    def _is_shifted(self, mine: Source, theirs: Source, rows: np.ndarray, by: int) -> bool:
        looked_at = 0
        for row in rows.tolist():
            sequence, position = int(self.tokens.sequence[row]), int(self.tokens.position[row])
            place = self.place_in_training(sequence, position + by)
            number = int(self.tokens.call[row])
            if place is None or place[0] not in theirs.calls:
                continue
            call, at = place
            there = np.flatnonzero(theirs.rows(call).at == at)
            own = mine.rows(number)
            here = np.flatnonzero(own.at == row - self.tokens.starts[number])
            x, y = own.values[here], theirs.rows(call).values[there]
            if x.shape != y.shape or not np.allclose(x, y, rtol=1e-4, atol=1e-6):
                return False
            looked_at += 1
            if looked_at == _LOOKED_AT:
                break
        return looked_at > 0

    def place_in_training(self, sequence: int, position: int) -> tuple[int, int] | None:
        """Return the call and row of the training's token at a position of the same sequence."""
        partner = int(self.matched.sequences[sequence])
        if partner < 0 or not 0 <= position < len(self.training.tokens.sequences[partner]):
            return None
        call, row = (of[partner] for of in self.training.tokens.places)
        return (int(call[position]), int(row[position])) if call[position] >= 0 else None

    def born_at(self, name: Name) -> np.ndarray:
        """Return the rows of the rollout that are born apart in a value, int64."""
        return self._way.born_at(name)

    def sources(self, name: Name) -> tuple[Source, Source]:
        """Return where the rows of a value that was measured come from: both networks."""
        return self._sources[name]

    def other_numbers(self, name: Name, given: Name) -> Numbers | None:
        """Return whole numbers that a cell was given and that explain which of its rows part.

        Args:
            name: a value that was measured.
            given: one that was not.
        """
        sources = self._unmeasured.get(given)
        if sources is None:
            return None
        return other_numbers(*sources, self.matched, self._way.born_at(name))

    def non_finite(self, name: Name) -> list[str]:
        """Return which sides have NaN or Inf in a value, of rollout and training."""
        found = []
        for side, source in zip(("rollout", "training"), self._sources[name]):
            try:
                whole = source.has_elements
                rows = (source.rows(n, sketched=not whole).values for n in source.calls)
                if not all(np.isfinite(values).all() for values in rows):
                    found.append(side)
            except (ArrayFileError, Unfit):
                continue
            finally:
                source.close()
        return found

    def shown_dtypes(self, name: Name) -> tuple[str | None, str | None]:
        """Return the lower dtypes that float32 values of both sides are numbers of, or None."""
        found = []
        for source in self._sources[name]:
            try:
                known = source.calls[-1:]
                values = source.rows(known[0]).values[:_LOOKED_AT] if known else np.zeros(0)
            except (ArrayFileError, Unfit):
                values = _extremes(source)
            found.append(shown_dtype(values))
        return found[0], found[1]

    def _values(self) -> list[tuple[Name, Source, Source]]:
        """Return the values that both networks have, as the training network came to them."""
        mine = {}
        for name, value in self.rollout.values.items():
            if (cell := self.names.common_a(name.cell)) is not None:
                mine[name._replace(cell=cell)] = value
        found = []
        parts: dict[Name, Source] = {}
        for name, value in self.training.values.items():
            if (cell := self.names.common_b(name.cell)) is not None:
                common = name._replace(cell=cell)
                parts[common] = source = Source(self.training, value)
                if common in mine:
                    if (of := self._fused(common)) is not None:  # with its rows in another order
                        source = Source(self.training, value, order=_order(of))
                    found.append((common, Source(self.rollout, mine[common]), source))
        found += self._of_fused(mine, parts)
        found += self._of_split(mine, parts)
        return sorted(found, key=lambda item: max(value.time for value in item[2].values))

    def _of_fused(
        self, mine: Mapping[Name, Value], parts: Mapping[Name, Source]
    ) -> Iterator[tuple[Name, Source, Source]]:
        """Yield the values of cells that are several ones in the training network.

        Args:
            mine: the rollout's values.
            parts: the training's, by the names that both networks have.
        """
        for name, value in mine.items():
            if name in parts or (of := self.weights.fused.get(name.cell)) is None:
                continue
            if name.io == "input":  # all parts are given the same
                given = parts.get(name._replace(cell=of.parts[0]))
                if given is not None:
                    yield name, Source(self.rollout, value), given
            else:
                wanted = [_before_activation(name._replace(cell=part), parts) for part in of.parts]
                if all(part in parts for part in wanted):
                    values = [parts[part].values[0] for part in wanted]
                    joined = Source(self.training, *values, order=_order(of))
                    yield name, Source(self.rollout, value), joined

    def _of_split(
        self, mine: Mapping[Name, Value], whole: Mapping[Name, Source]
    ) -> Iterator[tuple[Name, Source, Source]]:
        """Yield the values of cells that are several ones in the rollout network.

        Args:
            mine: the rollout's values.
            whole: the training's, by the names that both networks have.
        """
        for name, source in whole.items():
            if name in mine or (of := self.weights.split.get(name.cell)) is None:
                continue
            if name.io == "input":  # all parts are given the same
                given = mine.get(name._replace(cell=of.parts[0]))
                if given is not None:
                    yield name, Source(self.rollout, given), source
            else:
                wanted = [_before_activation(name._replace(cell=part), mine) for part in of.parts]
                if all(part in mine for part in wanted):
                    values = [mine[part] for part in wanted]
                    yield name, Source(self.rollout, *values, order=_order(of)), source

    def _fused(self, name: Name) -> Fused | None:
        """Return what a cell of the rollout is made of, if a value has the rows of its weight."""
        return self.weights.fused.get(name.cell) if name.io == "output" else None

    def _measure(self, name: Name, mine: Source, theirs: Source) -> None:
        try:
            aligned, lets_in = self._aligned(name, mine, theirs)
        except Unfit as error:
            if not _is_one_tensor(mine, theirs):
                self.not_compared.append((name, error.why))
                self._unmeasured[name] = mine, theirs
            return
        finally:
            mine.close()
            theirs.close()
        self._sources[name] = mine, theirs
        prints = theirs.values[0].prints
        made = prints is not None and not prints & self._seen
        self._seen |= prints or set()
        limit = self._limit(aligned)
        if lets_in is not None:
            self.masks[name] = lets_in
        self._way.add(aligned, limit, made=made, mask=lets_in is not None)

    def _limit(self, aligned: Aligned) -> float:
        return allowed(aligned.name.cell, aligned.distances, aligned.columns, *self.precision)

    def _aligned(self, name: Name, mine: Source, theirs: Source) -> tuple[Aligned, LetsIn | None]:
        """Measure one value's rows; those of masks and scores column by column.

        Raises:
            Unfit: they cannot be brought together.
        """
        columns = columns_of(mine, theirs)
        if columns is Columns.KEYS:
            return self._aligned_keys(name, mine, theirs)
        if columns is not None:
            for source in (mine, theirs):
                source.take_heads()
        aligned = align(name, mine, theirs, self.matched)
        if columns is Columns.EITHER and aligned.distances.relative().max() > self._limit(aligned):
            raise Unfit(message("mismatch.keys_or_features"))
        return aligned, None

    def _aligned_keys(
        self, name: Name, mine: Source, theirs: Source
    ) -> tuple[Aligned, LetsIn | None]:
        """Measure a mask or scores; what all layers are given is measured once.

        Raises:
            Unfit: they cannot be brought together.
        """
        prints = [value.prints_in_order for source in (mine, theirs) for value in source.values]
        if None in prints:
            return align_keys(name, mine, theirs, self.matched)
        key = (prints[0] or b"", prints[1] or b"")
        if key not in self._masks_measured:
            found = align_keys(name, mine, theirs, self.matched)
            if found[1] is None:
                return found
            self._masks_measured[key] = found
        aligned, lets_in = self._masks_measured[key]
        return replace(aligned, name=name), lets_in


def _is_one_tensor(mine: Source, theirs: Source) -> bool:
    """Return whether a value is one tensor in all calls of both sides, such as a constant."""
    if mine.is_fused or theirs.is_fused:
        return False
    prints = [source.values[0].prints for source in (mine, theirs)]
    return prints[0] is not None and len(prints[0]) == 1 and prints[0] == prints[1]


def _before_activation(name: Name, known: Container[Name]) -> Name:
    """Return what a cell computes before its activation, which fused cells leave to others."""
    inside = Name(f"{name.cell}.activation", name.nth, "input", name.path)
    return inside if inside in known else name


def _order(of: Fused) -> np.ndarray | None:
    """Return the order of a fused cell's columns; None if it is one other cell as it is."""
    alone = len(of.parts) == 1 and np.array_equal(of.order, np.arange(len(of.order)))
    return None if alone else of.order


def _extremes(source: Source) -> np.ndarray:
    """Return the largest and smallest elements of a value of which none were stored, float32.

    Nothing where they are too few to say that all elements are numbers of a lower dtype.
    """
    dtypes = {form.dtype for value in source.values for form in value.forms()}
    held = np.array([x for value in source.values for x in value.extremes], np.float64)
    with np.errstate(over="ignore"):
        found = np.unique(held[held != 0]).astype(np.float32)
    known = dtypes == {"Float32"} and len(found) >= _LEAST_EXTREMES and np.isfinite(found).all()
    return found if known else np.zeros(0)


def _coverage(rollout: Side, training: Side, matched: Matched) -> Coverage:
    first = max(rollout.window[0], training.window[0])
    last = min(rollout.window[1], training.window[1])
    samples = rollout.samples or training.samples
    return coverage(rollout.tokens, training.tokens, matched, samples, (first, last))
