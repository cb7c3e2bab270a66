"""All records of one place, in full: both sides, what was compared, and where tensors differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from mindrlhf_msprobe.findings import Finding, Metrics, Side
from mindrlhf_msprobe.phases import phase_order
from mindrlhf_msprobe.report.page.elements import Elements
from mindrlhf_msprobe.report.page.heat import Place
from mindrlhf_msprobe.report.page.words import all_said, known
from mindrlhf_msprobe.storage.arrays.atomic import number_to_json
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import Entry, Record

_LONGEST = 20_000  # characters of a value
_MOST_FRAMES = 50
_METRICS = tuple(of.name for of in fields(Metrics))


class Details:
    """The records of places, as the page's script reads them.

    Args:
        runs: A, and B where two are compared.
        elements: reads stored tensors.
    """

    def __init__(self, runs: Sequence[Run], elements: Elements) -> None:
        self._runs, self._elements = runs, elements

    def of_place(self, place: Place, findings: Iterable[Finding] | None) -> dict[str, Any]:
        """Return the block of a place.

        Args:
            findings: the pairs of the place; None of one run alone.
        """
        pairs = _Pairs(findings or ())
        stacks: dict[tuple[str, ...], int] = {}
        entries: dict[str, list[dict[str, Any]]] = {}
        seen: set[tuple[str, str]] = set()
        sides = [{(e.phase, e.name): e for e in run.entries(None, *place)} for run in self._runs]
        others = sides[1] if len(sides) > 1 and findings is not None else {}
        for at, entry in sides[0].items():
            names = pairs.names_in_b.get(at, at)
            other = others.get(names)
            seen.add(names)
            shown = self._entry(entry, pairs, other, stacks)
            entries.setdefault(entry.phase, []).append(shown)
        for at, entry in others.items():
            if at not in seen:
                shown = self._entry(None, pairs, entry, stacks)
                entries.setdefault(entry.phase, []).append(shown)
        return {
            "stacks": [[*stack[:_MOST_FRAMES]] for stack in stacks],
            "phases": [
                {"phase": phase, "entries": entries[phase]}
                for phase in sorted(entries, key=phase_order)
            ],
            "keys": self._keys(place, pairs),
        }

    def _entry(
        self,
        a: Entry | None,
        pairs: _Pairs,
        b: Entry | None,
        stacks: dict[tuple[str, ...], int],
    ) -> dict[str, Any]:
        entry = a or b
        assert entry is not None
        own = {} if a is None else {record.name: record for record in a.records}
        others = {} if b is None else {(r.io, r.path): r for r in b.records}
        shown = []
        for record in own.values():
            finding = pairs.of_a.get((entry.phase, record.name))
            other = others.pop((record.io, record.path), None)
            if finding is not None and finding.b.name is None:
                other = None
            shown.append(self._record(record, other, finding))
        for record in others.values():
            finding = pairs.of_b.get((entry.phase, record.name))
            if a is None or finding is not None:
                shown.append(self._record(None, record, finding))
        return {
            **known(n=entry.name, c=entry.class_name or None, parent=entry.parent),
            **{"o": entry.opening, "t": [entry.seq, entry.end]},
            **known(st=stacks.setdefault(entry.stack, len(stacks)) if entry.stack else None),
            **known(token=entry.token),
            "r": shown,
        }

    def _record(
        self, a: Record | None, b: Record | None, finding: Finding | None
    ) -> dict[str, Any]:
        record = a or b
        assert record is not None
        shown: dict[str, Any] = {"n": record.name, "io": record.io, "path": record.path}
        if record.argument:
            shown["arg"] = record.argument
        sides = [None if one is None else _leaf(one.leaf) for one in (a, b)]
        if finding is not None:
            shown["s"] = finding.status.value
            of = (finding.a, finding.b)
            sides = [
                _side(one) if side is None and one.name is not None else side
                for side, one in zip(sides, of)
            ]
            shown |= known(d=number_to_json(finding.distance))
            if finding.metrics is not None:
                values = {name: getattr(finding.metrics, name) for name in _METRICS}
                shown["m"] = known(**{n: number_to_json(v) for n, v in values.items()})
            said = (*finding.notes, *finding.suspicions, *finding.compared_by)
            if said:
                shown["notes"] = [all_said((one,)) for one in said]
        elif a is not None and b is not None:
            shown["s"] = _agreement(a.leaf, b.leaf)
        for name, side, one in zip("ab", sides, (a, b)):
            if side is not None:
                shown[name] = side | known(first=self._elements.first(one))
        agrees = finding is None or finding.status.agrees
        if not agrees and a is not None and b is not None:
            shown |= known(e=self._elements.error(a, b))
        return shown

    def _keys(self, place: Place, pairs: _Pairs) -> list[dict[str, Any]]:
        saves = [{(d.key, d.micro_step): d for d in r.key_data(None, *place)} for r in self._runs]
        if len(saves) > 1 and pairs.compared:
            b_only = [at for at in saves[1] if at not in saves[0]]
        else:
            saves, b_only = saves[:1], []
        found = []
        for at in [*saves[0], *b_only]:
            one, other = saves[0].get(at), saves[1].get(at) if len(saves) > 1 else None
            found.append({"key": at[0], "micro_step": at[1], "r": self._of_key(one, other, pairs)})
        return found

    def _of_key(
        self, a: KeyDatum | None, b: KeyDatum | None, pairs: _Pairs
    ) -> list[dict[str, Any]]:
        datum = a or b
        assert datum is not None
        at = datum.micro_step
        own = {} if a is None else {record.name: record for record in a.records}
        others = {} if b is None else {record.name: record for record in b.records}
        return [
            self._record(own.get(name), others.get(name), pairs.of_keys.get((name, at)))
            for name in {**own, **others}
        ]


class _Pairs:
    """The findings of one place, by the records they are of."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.of_a: dict[tuple[str, str], Finding] = {}
        self.of_b: dict[tuple[str, str], Finding] = {}
        self.of_keys: dict[tuple[str, int], Finding] = {}
        #: What an entry of A is called in B, where that is another name.
        self.names_in_b: dict[tuple[str, str], tuple[str, str]] = {}
        self.compared = False
        for finding in findings:
            self.compared = True
            phase = finding.phase or ""
            if finding.key is not None:
                self.of_keys[finding.record, finding.micro_step or 0] = finding
                continue
            if finding.a.name is not None:
                self.of_a[phase, finding.a.name] = finding
            if finding.b.name is not None:
                self.of_b[phase, finding.b.name] = finding
            if finding.a.name and finding.b.name and finding.a.name != finding.b.name:
                own, other = (_entry_of(name, finding) for name in (finding.a.name, finding.b.name))
                self.names_in_b[phase, own] = phase, other


def _entry_of(record: str, finding: Finding) -> str:
    tail = ".".join(filter(None, (finding.io, finding.path)))
    return record.removesuffix(f".{tail}")


def _agreement(a: Leaf, b: Leaf) -> str:
    """Return the status of two records of which it is known that they agree."""
    if a.fingerprint is not None and a.fingerprint == b.fingerprint:
        return "identical"
    same = all(getattr(a, n) == getattr(b, n) for n in ("max", "min", "mean", "norm", "value"))
    return "identical" if same else "within_tolerance"


def _leaf(leaf: Leaf) -> dict[str, Any]:
    shown = _values(leaf)
    shown |= known(file=leaf.data_name)
    if leaf.why is not None:
        shown["why"] = all_said((leaf.why,))
    return shown


def _side(side: Side) -> dict[str, Any]:
    return _values(side) | known(file=side.data_name)


def _values(of: Leaf | Side) -> dict[str, Any]:
    numbers = {name: number_to_json(getattr(of, name)) for name in ("max", "min", "mean", "norm")}
    return known(
        dtype=of.dtype,
        shape=None if of.shape is None else [*of.shape],
        **numbers,
        nan=of.nan_count,
        inf=of.inf_count,
        fp=of.fingerprint,
        value=_value(of.value),
    )


def _value(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= _LONGEST else f"{value[:_LONGEST]}…"
    if isinstance(value, (list, tuple)):
        return [_value(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): _value(item) for name, item in value.items()}
    return number_to_json(value)
