"""All records of one place, in full: both sides, what was compared, and where tensors differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.printable import cut
from mindrlhf_msprobe.findings import Finding, Metrics, Side
from mindrlhf_msprobe.phases import phase_order
from mindrlhf_msprobe.report.page.calls import Calls, Value
from mindrlhf_msprobe.report.page.data import known, said
from mindrlhf_msprobe.report.page.overview import Place
from mindrlhf_msprobe.storage.arrays.atomic import number_to_json
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.columns.leaf_json import LeafJson, statistic
from mindrlhf_msprobe.storage.columns.reading import columns_of
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.operators import is_operator
from mindrlhf_msprobe.storage.place import LayerPlace, StepPlace
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, Entry, Record

_FIRST = 8  # elements
_MOST_ELEMENTS = 1 << 22  # of a tensor whose error is shown
_MOST_TENSORS = 400  # of a page whose error is shown
_MOST_FIRST = 20_000  # of a page whose first values are
_BINS = 40
_MOST_EXACT = 2**53  # of the integers of JavaScript
_SIDE = 64  # cells of the map of a tensor's error, each way


def exact_number(value: Any) -> Any:
    """Return a number as JSON takes it; an integer that JavaScript would round as a text."""
    if isinstance(value, int) and abs(value) > _MOST_EXACT:
        return str(value)
    return number_to_json(value)


class Elements:
    """Reads stored tensors, so many in all.

    Attributes:
        left_out: how many tensors that differ were not read, as they are too large or too many.
    """

    def __init__(self) -> None:
        self.left_out = 0
        self._errors = self._firsts = 0

    def first(self, record: Record | None) -> list[Any] | None:
        """Return the first elements of a stored tensor; None where there are none."""
        if record is None or record.location is None or self._firsts >= _MOST_FIRST:
            return None
        self._firsts += 1
        try:
            found = record.array()
            return [exact_number(value) for value in found.flat[:_FIRST].tolist()]
        except (ArrayFileError, OSError, ValueError):
            return None

    def error(self, a: Record, b: Record) -> dict[str, Any] | None:
        """Return where two stored tensors of one shape differ: a histogram, and a map over rows.

        The histogram is of log10 |a−b| of the elements that are finite in both; the map shows the
        largest |a−b| of each part of the tensor, its last axis along the columns, to four digits.
        """
        if a.location is None or b.location is None:
            return None
        shape = a.leaf.shape
        if shape is None or shape != b.leaf.shape or 0 in shape:
            return None
        if self._errors >= _MOST_TENSORS or np.prod(shape, dtype=np.float64) > _MOST_ELEMENTS:
            self.left_out += 1
            return None
        self._errors += 1
        try:
            return _error(a.array(), b.array())
        except (ArrayFileError, OSError, ValueError, TypeError):
            return None


def _error(a: np.ndarray, b: np.ndarray) -> dict[str, Any] | None:
    if a.dtype.kind not in "biuf" or b.dtype.kind not in "biuf":
        return None
    with np.errstate(all="ignore"):
        difference = _difference(a, b)
    some = difference[(difference > 0) & np.isfinite(difference)]
    histogram = None
    if some.size:
        counts, edges = np.histogram(np.log10(some), _BINS)
        borders = [round(edge, 4) for edge in edges.tolist()]
        histogram = {"edges": borders, "counts": counts.tolist()}
    rows = difference.reshape(-1, difference.shape[-1] if difference.ndim else 1)
    shown = _largest(_largest(rows, 0), 1)
    values = [number_to_json(float(f"{value:.4g}")) for value in shown.ravel().tolist()]
    unlike = difference.ravel() != 0
    first = None
    if unlike.any():
        first = [int(i) for i in np.unravel_index(int(unlike.argmax()), difference.shape)]
    return {
        "histogram": histogram,
        "rows": {"shape": [*shown.shape], "of": [*rows.shape], "values": values},
        "different": int(np.count_nonzero(difference)),
        "size": int(difference.size),
        "first_mismatch": first,
    }


def _difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return |a−b| of each element as float64; of integers also where float64 has not both."""
    if a.dtype.kind == b.dtype.kind and a.dtype.kind in "iu":
        high, low = (of(a, b).astype(np.uint64) for of in (np.maximum, np.minimum))
        return (high - low).astype(np.float64)
    x, y = (np.asarray(side, np.float64) for side in (a, b))
    difference = np.abs(x - y)
    difference[(x == y) | (np.isnan(x) & np.isnan(y))] = 0.0
    return difference


def _largest(found: np.ndarray, axis: int) -> np.ndarray:
    """Return the largest of each of at most 64 parts along an axis; a NaN is the largest."""
    size = found.shape[axis]
    if size <= _SIDE:
        return found
    starts = np.linspace(0, size, _SIDE, endpoint=False).astype(np.intp)
    return np.maximum.reduceat(found, starts, axis=axis)


_MOST_FRAMES = 50
_METRICS = tuple(of.name for of in fields(Metrics))
_STATISTICS = ("max", "min", "mean", "norm")

_Shown = dict[str, Any]


class Details:
    """The records of places, as the page's script reads them.

    Args:
        runs: A, and B where two are compared.
        elements: reads stored tensors.
    """

    def __init__(self, runs: Sequence[Run], elements: Elements) -> None:
        self._runs, self._elements = runs, elements
        self._pairs = _Pairs(())  # of the place that is looked at, with its calls and their stacks
        self._calls = Calls(), Calls()  # of A and of B in one phase
        self._stacks: dict[tuple[str, ...], int] = {}
        self._timed = not any(run.foreign for run in runs)

    def of_place(self, place: Place, findings: Iterable[Finding] | None) -> _Shown:
        """Return the block of a place.

        Args:
            findings: the pairs of the place; None of one run alone.
        """
        self._pairs, self._stacks = _Pairs(findings or ()), {}
        phases = {phase for run in self._runs for phase in run.phases_at(StepPlace(*place))}
        compared = findings is not None and len(self._runs) > 1
        shown = []
        for phase in sorted(phases, key=lambda name: (phase_order(name), name)):
            at = LayerPlace(phase, *place)
            sides = [
                Calls(run, columns_of(run, at))
                if phase in run.phases_at(StepPlace(*place))
                else Calls()
                for run in self._runs
            ]
            self._calls = sides[0], sides[1] if compared else Calls()
            shown.append({"phase": phase, "entries": self._entries(phase)})
        frames = [[*stack[:_MOST_FRAMES]] for stack in self._stacks]
        saves = [{(d.key, d.micro_step): d for d in r.key_data(None, *place)} for r in self._runs]
        other = saves[1] if compared else {}
        keys = [
            {"key": at[0], "micro_step": at[1], "r": self._saved(saves[0].get(at), other.get(at))}
            for at in {**saves[0], **other}
        ]
        return {"stacks": frames, "phases": shown, "keys": keys}

    def _entries(self, phase: str) -> list[_Shown]:
        shown, seen, pairs = [], set(), self._pairs
        own, others = (calls.by_name for calls in self._calls)
        for name, call in own.items():
            partner = pairs.partners.get((phase, name), name)
            other = others.get(partner)
            listed = any(of.a.name is not None for of in pairs.of_entry(phase, name))
            if other is not None and is_operator(name) and not listed:
                # It agrees with one that may have another number.
                alone = pairs.is_of_b_alone(phase, partner)
                both = [{(io, path): leaf for io, path, leaf in of.values} for of in (call, other)]
                same = both[0].keys() == both[1].keys() and all(
                    _agreement(leaf, both[1][at]) == "identical" for at, leaf in both[0].items()
                )
                other = other if same and not alone else None
            if other is not None:
                seen.add(partner)
            shown.append(self._entry(phase, call, other))
        operators = any(map(is_operator, own))
        shown += [
            self._entry(phase, None, call)
            for name, call in others.items()
            if name not in seen
            and (not (operators and is_operator(name)) or pairs.is_of_b_alone(phase, name))
        ]
        return shown

    def _entry(self, phase: str, a: Entry | None, b: Entry | None) -> _Shown:
        call = a or b
        assert call is not None
        listed = self._pairs.of_entry(phase, call.name)
        found = [finding for finding in listed if _is_of(finding, a, b)]
        sides = zip((a, b), self._calls)
        if found and not any(side is not None and calls.are_stored for side, calls in sides):
            records = [self._pair(None, None, finding) for finding in found]
        else:
            records = [*self._records(phase, a, b)]
        stack = call.stack
        return {
            **known(n=call.name, c=call.class_name or None, parent=call.parent),
            "o": call.opening,
            **known(t=[call.seq, call.end] if self._timed else None),
            **known(st=self._stacks.setdefault(stack, len(self._stacks)) if stack else None),
            **known(token=call.token),
            "r": records,
        }

    def _records(self, phase: str, a: Entry | None, b: Entry | None) -> Iterable[_Shown]:
        """Yield the records of a call, those of B alone last."""
        own, of_b = self._calls
        others = {} if b is None else {(value.io, value.path): value for value in of_b.values(b)}
        for value in () if a is None else own.values(a):
            assert a is not None
            finding = self._pairs.of_a.get((phase, _record_name(a.name, value)))
            other = others.pop((value.io, value.path), None)
            if finding is not None and finding.b.name is None:
                other = None
            yield self._pair((a.name, value), other, finding)
        for value in others.values():
            assert b is not None
            finding = self._pairs.of_b.get((phase, _record_name(b.name, value)))
            if a is None or (finding is not None and finding.a.name is None):
                yield self._pair(None, value, finding, name=_record_name(b.name, value))

    def _pair(
        self, a: tuple[str, Value] | None, b: Value | None, finding: Finding | None, name: str = ""
    ) -> _Shown:
        own = None if a is None else a[1]
        named: Finding | Value | None = finding or own or b
        assert named is not None
        if finding is not None:
            name = finding.record
        elif a is not None:
            name = _record_name(*a)
        shown: _Shown = {"n": name, "io": named.io, "path": named.path}
        shown |= known(arg=named.argument or None)
        if finding is not None:
            shown |= _outcome(finding)
        elif own is not None and b is not None:
            shown["s"] = _agreement(own.leaf, b.leaf)
        # A side as it was read, else as the comparison has it; None where it has none.
        of = (None, None) if finding is None else (finding.a, finding.b)
        sides = [
            _of_leaf(value.leaf)
            if value is not None
            else None
            if side is None or side.name is None
            else _of_side(side)
            for value, side in zip((own, b), of)
        ]
        records = [None if one is None else one.record for one in (own, b)]
        return self._with_elements(shown, sides, records, finding)

    def _with_elements(
        self,
        shown: _Shown,
        sides: Sequence[_Shown | None],
        records: Sequence[Record | None],
        finding: Finding | None,
    ) -> _Shown:
        known_sides = [side for side in sides if side is not None]
        if any(isinstance(side.get("value"), str) and "shape" in side for side in known_sides):
            # The numbers of their bytes mean nothing.
            shown = {key: value for key, value in shown.items() if key not in ("m", "d")}
            for name, side in zip("ab", sides):
                if side is not None:
                    shown[name] = {key: side[key] for key in ("value", "fp", "why") if key in side}
            return shown
        for name, side, record in zip("ab", sides, records):
            if side is not None:
                if record is not None and record.leaf.why is not None:
                    side = side | {"why": said(record.leaf.why)}
                shown[name] = side | known(first=self._elements.first(record))
        a, b = records
        if finding is not None and not finding.status.agrees and a is not None and b is not None:
            shown |= known(e=self._elements.error(a, b))
        return shown

    def _saved(self, a: KeyDatum | None, b: KeyDatum | None) -> list[_Shown]:
        datum = a or b
        assert datum is not None
        own, others = (
            {} if side is None else {record.name: record for record in side.records}
            for side in (a, b)
        )
        found = []
        for name in {**own, **others}:
            finding = self._pairs.of_keys.get((name, datum.micro_step))
            records = own.get(name), others.get(name)
            one = records[0] or records[1]
            assert one is not None
            shown: _Shown = {"n": name, "io": "data", "path": one.path}
            shown |= {} if finding is None else _outcome(finding)
            sides = [None if record is None else _of_side(record.leaf) for record in records]
            found.append(self._with_elements(shown, sides, records, finding))
        return found


class _Pairs:
    """The findings of one place, by the records they are of.

    Attributes:
        partners: what an entry of A is called in B, where that is another name.
    """

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.of_a: dict[tuple[str, str], Finding] = {}
        self.of_b: dict[tuple[str, str], Finding] = {}
        self.of_keys: dict[tuple[str, int], Finding] = {}
        self._entries: dict[tuple[str, str], list[Finding]] = {}
        self.partners: dict[tuple[str, str], str] = {}
        for finding in findings:
            phase, a, b = finding.phase or "", finding.a.name, finding.b.name
            if finding.key is not None:
                self.of_keys[finding.record, finding.micro_step or 0] = finding
                continue
            if finding.entry is not None:
                self._entries.setdefault((phase, finding.entry), []).append(finding)
            if a is not None:
                self.of_a[phase, a] = finding
            if b is not None:
                self.of_b[phase, b] = finding
            if a is not None and b is not None and a != b:
                self.partners[phase, _entry_of(a, finding)] = _entry_of(b, finding)

    def of_entry(self, phase: str, entry: str) -> list[Finding]:
        """Return the pairs of an entry, by what the findings call it; [] if none is listed."""
        return self._entries.get((phase, entry), [])

    def is_of_b_alone(self, phase: str, entry: str) -> bool:
        """Return whether all that is listed of an entry of B is in B alone."""
        found = [
            finding
            for finding in self.of_entry(phase, entry)
            if finding.b.name is not None and _entry_of(finding.b.name, finding) == entry
        ]
        return bool(found) and all(finding.a.name is None for finding in found)


def _is_of(finding: Finding, a: Entry | None, b: Entry | None) -> bool:
    """Return whether a finding that calls its entry so is of these calls, and not of another one.

    What B alone has may be called as another call of A.
    """
    if finding.a.name is not None:
        return a is not None
    if finding.b.name is None:
        return a is not None
    return b is not None and _entry_of(finding.b.name, finding) == b.name


def _record_name(entry: str, value: Value) -> str:
    head = entry if value.io == PARAMETERS_GRAD else f"{entry}.{value.io}"
    return f"{head}.{value.path}"


def _entry_of(record: str, finding: Finding) -> str:
    parts = (finding.path,) if finding.io == PARAMETERS_GRAD else (finding.io, finding.path)
    return record.removesuffix("." + ".".join(filter(None, parts)))


def _outcome(finding: Finding) -> _Shown:
    """Return what was compared of a pair."""
    shown = {"s": finding.status.value} | known(d=number_to_json(finding.distance))
    if finding.metrics is not None:
        values = {name: getattr(finding.metrics, name) for name in _METRICS}
        shown["m"] = known(**{name: number_to_json(value) for name, value in values.items()})
    messages = (*finding.notes, *finding.suspicions, *finding.compared_by)
    if messages:
        shown["notes"] = [said(one) for one in messages]
    return shown


def _agreement(a: LeafJson, b: LeafJson) -> str:
    """Return the status of two values of which it is known that they agree."""
    if a.get("fingerprint") is not None and a.get("fingerprint") == b.get("fingerprint"):
        return "identical"
    names = ("Max", "Min", "Mean", "Norm", "value")
    same = all(a.get(name) == b.get(name) for name in names)
    return "identical" if same else "within_tolerance"


def _of_leaf(leaf: LeafJson) -> _Shown:
    numbers = {name: number_to_json(statistic(leaf, name.title())) for name in _STATISTICS}
    return known(
        dtype=leaf.get("dtype"),
        shape=leaf.get("shape"),
        **numbers,
        nan=leaf.get("nan_count"),
        inf=leaf.get("inf_count"),
        fp=leaf.get("fingerprint"),
        value=_value(leaf.get("value", leaf.get("text"))),
        file=leaf.get("data_name"),
    )


def _of_side(of: Side | Leaf) -> _Shown:
    return known(
        dtype=of.dtype,
        shape=None if of.shape is None else [*of.shape],
        **{name: number_to_json(getattr(of, name)) for name in _STATISTICS},
        nan=of.nan_count,
        inf=of.inf_count,
        fp=of.fingerprint,
        value=_value(of.value),
        file=of.data_name,
    )


def _value(value: Any) -> Any:
    if isinstance(value, str):
        return cut(value, 20_000)
    if isinstance(value, (list, tuple)):
        return [_value(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): _value(item) for name, item in value.items()}
    return exact_number(value)
