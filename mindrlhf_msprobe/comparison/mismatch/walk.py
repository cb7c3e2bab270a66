"""Both networks side by side: every value that both have, measured by token in causal order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.comparison.judging.status import Decode
from mindrlhf_msprobe.comparison.mismatch.growth import GROWTH, ErrorGrowth
from mindrlhf_msprobe.comparison.mismatch.keyed import Columns, LetsIn, align_keys, columns_of
from mindrlhf_msprobe.comparison.mismatch.rows import Aligned, NotAligned, Source, align, explained
from mindrlhf_msprobe.comparison.mismatch.sides import Side, Value
from mindrlhf_msprobe.comparison.mismatch.weights import WeightPair, Weights, compare_weights
from mindrlhf_msprobe.comparison.pairing.frameworks.presets import preset_names
from mindrlhf_msprobe.comparison.pairing.fused import Fused
from mindrlhf_msprobe.comparison.pairing.mapping import NO_MAPPING, CellMapping
from mindrlhf_msprobe.comparison.pairing.names import Name, around, match_names
from mindrlhf_msprobe.findings.mismatch import Stage, Token
from mindrlhf_msprobe.sequences.matching import coverage, match
from mindrlhf_msprobe.storage.arrays.npy import roundoff
from mindrlhf_msprobe.storage.records import cell_of_parameter

_SHOWN_TOKENS = 8  # of a text, the last one being the token that is meant
_LEAST_EXTREMES = 4  # that differ: one in 10^15 times four numbers of float32 are such of float16
_LOOKED_AT = 64  # rows whose values are looked at for a lower precision


class Walk:
    """One step of one rank: the rollout's phase against the training's.

    Attributes:
        matched: which rows are the same token.
        coverage: how many of the tokens that there are were aligned.
        mapping: what a user says of names.
        decode: makes texts of tokens; None without a tokenizer.
        names_of: makes of a cell of either the name that both have.
        weights: the parameters of both.
        stages: every value that was measured, by its name in the training network.
        sources: where the rows of each come from, of both networks.
        growth: where error begins in them, and how it grows.
        not_compared: those that both have and that could not be, unless they are one tensor in all
            calls of both; `unmeasured` has where their rows would come from.
        named_by: those of them by which rows are named: ids and positions.
        masks: those of them that are masks, and what they let in.
    """

    def __init__(
        self,
        rollout: Side,
        training: Side,
        mapping: CellMapping = NO_MAPPING,
        decode: Decode | None = None,
    ) -> None:
        self.rollout, self.training = self.sides = rollout, training
        self.matched = match(rollout.tokens, training.tokens)
        windows = rollout.window, training.window
        window = max(first for first, _ in windows), min(last for _, last in windows)
        samples = rollout.samples or training.samples
        self.coverage = coverage(rollout.tokens, training.tokens, self.matched, samples, window)
        self.mapping = mapping
        rules = (*mapping.names, *preset_names(rollout.cells, training.cells))
        self.names = match_names(rollout.cells, training.cells, rules)
        self.names_of = self.names.common_a, self.names.common_b
        self.weights: Weights = compare_weights(
            rollout.parameters, training.parameters, self.names, mapping.fused
        )
        self.not_compared: list[tuple[Name, Message]] = []
        self.tokens = rollout.tokens.rows
        self.decode = decode
        numbers = np.array(rollout.tokens.samples or (), np.int64)
        others = np.flatnonzero(numbers < 0)
        numbers[others] = len(rollout.samples) + np.arange(len(others))
        self._samples = numbers if len(numbers) else np.zeros(1, np.int64)
        self.sources: dict[Name, tuple[Source, Source]] = {}
        self.named_by: set[Name] = set()
        self.unmeasured: dict[Name, tuple[Source, Source]] = {}
        self._seen: set[int] = set()
        self.masks: dict[Name, LetsIn] = {}
        self._masks_measured: dict[tuple[bytes, bytes], tuple[Aligned, LetsIn | None]] = {}
        self.growth = ErrorGrowth(self.tokens, self.token)
        for name, mine, theirs in self._values():
            self._measure(name, mine, theirs)
        self.stages: dict[Name, Stage] = self.growth.stages()

    @cached_property
    def cells_alone(self) -> tuple[frozenset[str], frozenset[str]]:
        """The cells of each network that the other one has not, nor as parts of others.

        By their own names; without those that the other side was not to record.
        """
        sides = self.sides
        names = [{common(c) or c: c for c in s.cells} for s, common in zip(sides, self.names_of)]
        whole = self.weights.fused, self.weights.split
        found = []
        for side in (0, 1):
            parts = {part for of in whole[1 - side].values() for part in of.parts}
            partners = {*whole[side], *parts}  # all inside is theirs, too
            config = sides[1 - side].run.config()
            found.append(
                frozenset(
                    cell
                    for common, cell in names[side].items()
                    if common not in names[1 - side]
                    and partners.isdisjoint((common, *around(common)))
                    and (config is None or config.records_cell(cell))
                )
            )
        return found[0], found[1]

    def is_given_to(self, name: Name, side: int, cell: str) -> bool:
        """Return whether a value of one side is what a cell of the other side is given.

        Args:
            side: 0 for the rollout's value, 1 for the training's.
            cell: of the other side, by its own name.
        """
        other = (self.training, self.rollout)[side]
        given = [v for n, v in other.values.items() if (n.cell, n.io) == (cell, "input")]
        if not given:
            return False
        pair = [*self.sources[name]]
        pair[1 - side] = Source(other, given[0])
        try:
            aligned = align(name, pair[0], pair[1], self.matched)
        except NotAligned:
            return False
        finally:
            for source in pair:
                source.close()
        limit = max(self._limit(aligned), GROWTH * self.stages[name].entered)
        return bool(aligned.distances.relative().max() <= limit)

    @cached_property
    def merged(self) -> dict[str, WeightPair]:
        """The parameters that hold adapters which the other network has beside them, by name.

        Their elements say it; where these were not stored, what their cells return agrees.
        """
        found = {}
        for pair in self.weights.unequal:
            if pair.adapters is None:
                continue
            cells = {cell_of_parameter(name) for name in (pair.rollout, *pair.training)}
            returned = [s for n, s in self.stages.items() if n.io == "output" and n.cell in cells]
            agree = bool(returned) and not any(stage.arising for stage in returned)
            if pair.adapters.factor is not None or agree:
                found[pair.rollout] = pair
        return found

    def token(self, row: int, apart: float = 0.0) -> Token:
        """Return what a reader sees of a row of the rollout."""
        tokens = self.tokens
        sequence, position = int(tokens.sequence[row]), int(tokens.position[row])
        ids = self.rollout.tokens.sequences[sequence]
        text = ""
        if self.decode is not None:
            text = self.decode(ids[max(0, position + 1 - _SHOWN_TOKENS) : position + 1].tolist())
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

    def last_place(self, call: int) -> int | None:
        """Return the place in a response of the last token that a call of the rollout is given.

        Of several samples the first one; None where it is given tokens of prompts alone.
        """
        tokens = self.tokens
        rows = np.flatnonzero((tokens.call == call) & (tokens.sequence >= 0))
        last: dict[int, int] = {}
        for sequence, position in zip(
            tokens.sequence[rows].tolist(), tokens.position[rows].tolist()
        ):
            last[sequence] = max(position, last.get(sequence, 0))
        in_responses = (at - self._begun_with(sequence, call) for sequence, at in last.items())
        return min((place for place in in_responses if place >= 0), default=None)

    def _begun_with(self, sequence: int, call: int) -> int:
        """Return the length of the prompt with which a sequence began in the rollout.

        A rollout without a cache is given all tokens of a response in each call, each as a sequence
        of its own: what the same row of an earlier call began with is the prompt.
        """
        held = self.rollout.tokens.sequences
        rows = self._sequences_of_calls
        row = rows[call].index(sequence)
        found = [self.prompt(sequence)]
        for others in (rows.get(number, []) for number in range(call)):
            size = self.prompt(others[row]) if row < len(others) else 0
            if size and np.array_equal(held[others[row]][:size], held[sequence][:size]):
                found.append(size)
        return min(found)

    @cached_property
    def _sequences_of_calls(self) -> dict[int, list[int]]:
        """Of each call of the rollout the sequences of which it is given tokens, in its order."""
        found: dict[int, dict[int, None]] = {}
        for call, sequence in zip(self.tokens.call.tolist(), self.tokens.sequence.tolist()):
            if sequence >= 0:
                found.setdefault(call, {})[sequence] = None
        return {call: [*sequences] for call, sequences in found.items()}

    @cached_property
    def behind_padding(self) -> set[int]:
        """The sequences of the rollout that either network is given behind padding."""
        mine, theirs = (
            set().union(*(call.behind_padding() for call in side.tokens.calls))
            for side in self.sides
        )
        partners = self.matched.sequences.tolist()
        return mine | {number for number, other in enumerate(partners) if other in theirs}

    def is_at_border(self, row: int) -> bool:
        """Return whether a token is the first of a block of a paged cache, behind another one."""
        size, position = self.rollout.tokens.block, int(self.tokens.position[row])
        return size is not None and position > 0 and position % size == 0

    def next_token(self, sequence: int, position: int) -> int:
        """Return the training's token behind one of the rollout; -1 where there is none."""
        partner = int(self.matched.sequences[sequence])
        tokens = self.training.tokens.sequences[partner] if partner >= 0 else ()
        return int(tokens[position + 1]) if position + 1 < len(tokens) else -1

    def shift(self, name: Name) -> int | None:
        """Return of which other position the rollout's rows are, where they begin to be apart.

        Returns:
            1 if each is the training's row of the next position of its sequence, -1 of the one
            before, and so on up to 2; None if they are none of these.
        """
        mine, theirs = self.sources[name]
        if not (mine.has_elements and theirs.has_elements):
            return None
        rows = self.growth.begins_at(name).tolist()
        return next((by for by in (1, -1, 2, -2) if self._is_shifted(mine, theirs, rows, by)), None)

    def _is_shifted(self, mine: Source, theirs: Source, rows: Sequence[int], by: int) -> bool:
        looked_at = 0
        for row in rows:
            partner = int(self.matched.sequences[int(self.tokens.sequence[row])])
            position, number = int(self.tokens.position[row]) + by, int(self.tokens.call[row])
            size = len(self.training.tokens.sequences[partner]) if partner >= 0 else 0
            if not 0 <= position < size:
                continue
            # The training's token at that position of the same sequence.
            tokens = self.training.tokens
            there = int(tokens.places[tokens.starts[partner] + position])
            call = int(tokens.rows.call[there]) if there >= 0 else -1
            if call not in theirs.calls:
                continue
            x = mine.row(number, row - int(self.tokens.starts[number]))
            y = theirs.row(call, there - int(tokens.rows.starts[call]))
            if x is None or y is None or not np.allclose(x, y, rtol=1e-4, atol=1e-6):
                return False
            looked_at += 1
            if looked_at == _LOOKED_AT:
                break
        return looked_at > 0

    def non_finite(self, name: Name) -> list[str]:
        """Return which sides have NaN or Inf in a value, of rollout and training."""
        found = []
        for side, source in zip(("rollout", "training"), self.sources[name]):
            try:
                whole = source.has_elements
                rows = (source.rows(n, sketched=not whole).values for n in source.calls)
                if not all(np.isfinite(values).all() for values in rows):
                    found.append(side)
            except NotAligned:
                continue
            finally:
                source.close()
        return found

    def shown_dtypes(self, name: Name) -> tuple[str | None, str | None]:
        """Return the lower dtypes that float32 values of both sides are numbers of, or None."""
        found = []
        for source in self.sources[name]:
            try:
                known = source.calls[-1:]
                values = source.rows(known[0]).values[:_LOOKED_AT] if known else np.zeros(0)
            except NotAligned:
                # The largest and smallest elements, if they are enough to say that all elements are
                # numbers of a lower dtype.
                dtypes = {leaf.dtype for value in source.values for leaf in value.leaves()}
                held = np.array([x for value in source.values for x in value.extremes], np.float64)
                with np.errstate(over="ignore"):
                    values = np.unique(held[held != 0]).astype(np.float32)
                enough = len(values) >= _LEAST_EXTREMES and np.isfinite(values).all()
                values = values if enough and dtypes == {"Float32"} else np.zeros(0)
            found.append(shown_dtype(values))
        return found[0], found[1]

    def _values(self) -> list[tuple[Name, Source, Source]]:
        """Return the values that both networks have, as the training network came to them.

        What is several values of it stands at the first of these: nothing that is made of another
        one stands before it.
        """
        mine, theirs = (
            {
                name._replace(cell=cell): value
                for name, value in side.values.items()
                if (cell := common(name.cell)) is not None
            }
            for side, common in zip(self.sides, self.names_of)
        )
        found = []
        for name, value in theirs.items():
            if name in mine:
                # What the cell returns may have the rows of its weight, in another order.
                of = self.weights.fused.get(name.cell) if name.io == "output" else None
                order = None if of is None else _order(of)
                source = Source(self.training, value, order=order)
                found.append((name, Source(self.rollout, mine[name]), source))
        for name, value, parts, order in _of_several(self.weights.fused, mine, theirs):
            source = Source(self.training, *parts, order=order)
            found.append((name, Source(self.rollout, value), source))
        for name, value, parts, order in _of_several(self.weights.split, theirs, mine):
            source = Source(self.rollout, *parts, order=order)
            found.append((name, source, Source(self.training, value)))
        return sorted(found, key=lambda item: min(value.time for value in item[2].values))

    def _measure(self, name: Name, mine: Source, theirs: Source) -> None:
        try:
            aligned, lets_in = self._aligned(name, mine, theirs)
        except NotAligned as error:
            own = [None if s.is_fused else s.values[0].prints for s in (mine, theirs)]
            if own[0] is not None and len(own[0]) == 1 and own[0] == own[1]:
                return  # one tensor in all calls of both, such as a constant
            self.not_compared.append((name, error.why))
            self.unmeasured[name] = mine, theirs
            by = self.rollout.aligned_by, self.training.aligned_by
            if all(of is not None and of <= known for of, known in zip(own, by)):
                self.named_by.add(name)
            return
        finally:
            mine.close()
            theirs.close()
        self.sources[name] = mine, theirs
        prints = theirs.values[0].prints
        made = prints is not None and not prints & self._seen
        self._seen |= prints or set()
        limit = self._limit(aligned)
        if lets_in is not None:
            self.masks[name] = lets_in
        self.growth.add(aligned, limit, made=made, mask=lets_in is not None)

    def _limit(self, aligned: Aligned) -> float:
        """Return the relative distance of rows that rounding explains in a cell and all inside it.

        Roundings of n cells one behind the other are independent: √n times that of one.
        """
        cell, (a, b) = aligned.name.cell, self.sides
        dtype = min(a.lowest(cell), b.lowest(cell), key=roundoff)
        cells = 1 + max(a.inside[cell], b.inside[cell])
        return explained(dtype, aligned.columns, aligned.distances.sampled) * math.sqrt(cells)

    def _aligned(self, name: Name, mine: Source, theirs: Source) -> tuple[Aligned, LetsIn | None]:
        """Measure one value's rows; those of masks and scores column by column.

        What all layers are given of these is measured once.

        Raises:
            NotAligned: they cannot be brought together.
        """
        columns = columns_of(mine, theirs)
        if columns is Columns.KEYS:
            prints = [value.prints_in_order for side in (mine, theirs) for value in side.values]
            key = (prints[0] or b"", prints[1] or b"")
            if None in prints or key not in self._masks_measured:
                found = align_keys(name, mine, theirs, self.matched)
                if None in prints or found[1] is None:
                    return found
                self._masks_measured[key] = found
            aligned, lets_in = self._masks_measured[key]
            return replace(aligned, name=name), lets_in
        if columns is not None:
            for source in (mine, theirs):
                source.take_heads()
        aligned = align(name, mine, theirs, self.matched)
        if columns is Columns.EITHER and aligned.distances.relative().max() > self._limit(aligned):
            raise NotAligned(message("mismatch.keys_or_features"))
        return aligned, None


def _of_several(
    fused: Mapping[str, Fused], whole: Mapping[Name, Value], others: Mapping[Name, Value]
) -> Iterator[tuple[Name, Value, list[Value], np.ndarray | None]]:
    """Yield the values of cells that are several in the other network, and those of their parts.

    Args:
        fused: cell → its parts.
        whole: values of the network that has these cells.
        others: values of the other network.

    Yields:
        The name, its value, the values of the parts, and in which order their columns stand.
    """
    for name, value in whole.items():
        if name in others or (of := fused.get(name.cell)) is None:
            continue
        wanted = [name._replace(cell=part) for part in of.parts]
        if name.io == "input":  # all parts are given the same, the first in time before any
            given = [others[part] for part in wanted if part in others]
            if given:
                yield name, value, [min(given, key=lambda one: one.time)], None
            continue
        # What parts compute before their activation, which fused cells leave to others.
        before = [Name(f"{part.cell}.activation", part.nth, "input", part.path) for part in wanted]
        wanted = [early if early in others else part for early, part in zip(before, wanted)]
        if all(part in others for part in wanted):
            yield name, value, [others[part] for part in wanted], _order(of)


def _order(of: Fused) -> np.ndarray | None:
    """Return the order of a fused cell's columns; None if it is one other cell as it is."""
    alone = len(of.parts) == 1 and np.array_equal(of.order, np.arange(len(of.order)))
    return None if alone else of.order


def shown_dtype(values: np.ndarray) -> str | None:
    """Return the lower dtype that all values of a float32 tensor are numbers of, or None."""
    if values.dtype != np.float32 or not np.any(values):
        return None
    bits = np.ascontiguousarray(values).view(np.uint32)
    if not np.any(bits & 0xFFFF):
        return "bfloat16"
    with np.errstate(over="ignore"):
        exact = np.array_equal(values.astype(np.float16).astype(np.float32), values)
    return "float16" if exact else None
