"""One value over the calls of a phase, in few bytes a call: there may be a million of them."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from mindrlhf_msprobe.common.message import Message
from mindrlhf_msprobe.sequences.calls import PhaseTokens
from mindrlhf_msprobe.sequences.layouts import Layout, Shape, only_layout
from mindrlhf_msprobe.storage.arrays.sketches import SketchPlace
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.records import Record

_NO_SKETCH = -1
_EXTREMES = 128  # that are kept


class Form(NamedTuple):
    """What the records of a value have in common: all of them, or those of some calls.

    Attributes:
        before, behind: what stands around the number of the call in where elements lie; "" where
            none were stored.
        algorithm, block: of the sketch; "" without one.
    """

    io: str
    path: str
    type: str
    dtype: str | None
    shape: Shape
    before: str
    behind: str
    algorithm: str
    block: int
    sketches: str | None


class Value:
    """One value over the calls of a phase: of a cell, the n-th time it runs in a call.

    Attributes:
        time: when it was known first, on its process's clock.
        class_name: of its cell.
        entry: the name of the first entry that has it.
        calls: of the network, int64, rising.
    """

    def __init__(self, time: int, class_name: str, entry: str) -> None:
        self.time, self.class_name, self.entry = time, class_name, entry
        self.calls = array("q")
        self._forms: list[Form] = []
        self._numbers = array("q")  # of the entries, which stand in the names of files
        self._norms, self._prints, self._offsets = array("d"), array("q"), array("q")
        #: The largest and smallest elements of its tensors, of the first of them.
        self.extremes = array("d")
        self._elsewhere: dict[int, str] = {}  # call → where its elements lie, if no form says it
        self._why: dict[int, tuple[Message | None, Message | None]] = {}
        self._without_print = False

    def add(self, call: int, number: int, record: Record, forms: dict[Form, Form]) -> None:
        """Add what was recorded in a call; calls come in their order.

        Args:
            number: of the entry among those of its cell.
            forms: of all values; equal ones are kept once.
        """
        if self.calls and self.calls[-1] >= call:
            return
        leaf, at = record.leaf, record.location or ""
        shown = f".{number}.{record.io}.{record.path}"
        before, named, behind = at.rpartition(shown)
        if named:
            before, behind = f"{before}.", f"{shown[len(str(number)) + 1 :]}{behind}"
        elif at:
            behind, self._elsewhere[call] = "", at
        sketch = leaf.sketch
        form = Form(
            *(record.io, record.path, leaf.type, leaf.dtype, leaf.shape or ()),
            *(before, behind),
            *(("", 0) if sketch is None else (sketch.algorithm, sketch.block)),
            record.sketches,
        )
        self._forms.append(forms.setdefault(form, form))
        self.calls.append(call)
        self._numbers.append(number)
        norm = leaf.norm
        self._norms.append(float(norm) if isinstance(norm, (int, float)) else math.nan)
        if len(self.extremes) < _EXTREMES:
            self.extremes.extend(x for x in (leaf.max, leaf.min) if isinstance(x, float))
        self._prints.append(hash(leaf.fingerprint))
        self._without_print |= leaf.fingerprint is None
        self._offsets.append(_NO_SKETCH if sketch is None else sketch.offset)
        why = leaf.why, None if sketch is None else sketch.why
        if any(why):
            self._why[call] = why

    def form(self, call: int) -> Form:
        """Return what is known of the record of a call."""
        return self._forms[self._at(call)]

    def forms(self) -> Iterator[Form]:
        """Yield what is known of the records, each form once."""
        yield from dict.fromkeys(self._forms)

    def norm(self, call: int) -> float:
        """Return the L2 norm of a call's tensor; NaN where it is not known."""
        return self._norms[self._at(call)]

    @property
    def prints(self) -> set[int] | None:
        """What tells the tensors of its calls apart; None where some have no fingerprint."""
        return None if self._without_print else {*self._prints}

    @property
    def prints_in_order(self) -> bytes | None:
        """What tells all its calls' tensors from those of another value; None without prints."""
        return None if self._without_print else self.calls.tobytes() + self._prints.tobytes()

    @cached_property
    def has_elements(self) -> bool:
        """Whether elements were stored in all calls."""
        return all(
            form.before or call in self._elsewhere for form, call in zip(self._forms, self.calls)
        )

    def record(self, call: int) -> Record:
        """Return the record of a call, as far as it is needed to read its elements or sketch."""
        at = self._at(call)
        form, offset = self._forms[at], self._offsets[at]
        why, of_sketch = self._why.get(call, (None, None))
        place = None
        if offset != _NO_SKETCH:
            place = SketchPlace(form.algorithm, form.block, offset, of_sketch)
        leaf = Leaf(form.type, form.dtype, form.shape, why=why, sketch=place)
        location = self._elsewhere.get(call)
        if form.before:
            location = f"{form.before}{self._numbers[at]}{form.behind}"
        name = f"{self.entry.rpartition('.')[0]}.{self._numbers[at]}.{form.io}.{form.path}"
        return Record(name, form.io, form.path, leaf, location, "", form.sketches)

    def layouts(
        self, tokens: PhaseTokens, *, heads: bool = False
    ) -> dict[tuple[Shape, int, int], Layout]:
        """Return how its axes stand, by shape, batch and width; without what nothing decides.

        Args:
            heads: [b, h, s, s] are heads of that size, no scores.
        """
        seen = set()
        for call, form in zip(self.calls, self._forms):
            of = tokens.calls[call]
            seen.add((form.shape, of.batch, of.width))
        return only_layout(seen, heads=heads)

    def _at(self, call: int) -> int:
        at = bisect_left(self.calls, call)
        if at == len(self.calls) or self.calls[at] != call:
            raise KeyError(call)
        return at
