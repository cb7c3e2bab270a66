"""A weight of one checkpoint that is several of the other one, as a mapping says."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from mindrlhf_msprobe.common.text.printable import shortened
from mindrlhf_msprobe.comparison.checkpoints.names import split_state
from mindrlhf_msprobe.comparison.mismatch.weights.mapping import FusedRule, interleaved
from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.storage.foreign.checkpoints.stored import StoredTensor

_Tensors = Mapping[str, StoredTensor]


class FusedTensor(StoredTensor):
    """Several parameters, whose rows are those of one; read where they are asked for.

    Attributes:
        parts: in the order in which they alternate.
    """

    def __init__(self, name: str, parts: Sequence[StoredTensor], groups: int) -> None:
        rows = sum(part.shape[0] for part in parts)
        why = next((part.why for part in parts if part.why is not None), None)
        super().__init__(name, parts[0].dtype, (rows, *parts[0].shape[1:]), why)
        self.parts = tuple(parts)
        self._width = self.size // rows if rows else 0
        # Of each part, in turn: where its rows of each group begin, among those of the whole.
        self._heights = [part.shape[0] // groups for part in parts]

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the elements from `start` to before `stop`, as `StoredTensor.read` says."""
        found = [part.read(begin, end) for part, begin, end in self._pieces(start, stop)]
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[StoredTensor, int, int]]:
        """Yield what of which part stands between two elements, in this order."""
        each = sum(self._heights) * self._width
        starts = [n * self._width for n in itertools.accumulate(self._heights, initial=0)]
        for group in range(start // each, -(-stop // each)):
            for part, height, offset in zip(self.parts, self._heights, starts):
                size, at = height * self._width, group * each + offset
                begin, end = max(start, at), min(stop, at + size)
                if begin < end:
                    own = group * size - at
                    yield part, own + begin, own + end


def fuse(
    a: _Tensors, b: _Tensors, rules: Sequence[FusedRule]
) -> list[tuple[StoredTensor, StoredTensor]]:
    """Return the parameters of either side that are several of the other one.

    Raises:
        UsageError: a part is missing, or the shapes do not sum up.
    """
    found = []
    for own, others, turned in ((a, b, False), (b, a, True)):
        for name, tensor in own.items():
            parts = _parts_of(name, others, rules)
            if parts is None:
                continue
            whole = _whole(tensor, *parts)
            found.append((whole, tensor) if turned else (tensor, whole))
    return found


def _parts_of(
    name: str, others: _Tensors, rules: Sequence[FusedRule]
) -> tuple[list[StoredTensor], FusedRule] | None:
    state, bare = split_state(name)
    cell, _, own = bare.rpartition(".")
    for rule in rules:
        names = rule.parts_of(cell)
        if names is not None:
            parts = [others.get(f"{state}{part}.{own}") for part in names]
            known = [part for part in parts if part is not None]
            if not known:
                return None  # of a state, or a bias, that only one side has
            if len(known) < len(parts):
                lacking = next(n for n, part in zip(names, parts) if part is None)
                lost = {"name": shortened(name), "part": shortened(f"{state}{lacking}.{own}")}
                raise UsageError.saying("checkpoint.no_part", **lost)
            return known, rule
    return None


def _whole(tensor: StoredTensor, parts: Sequence[StoredTensor], rule: FusedRule) -> StoredTensor:
    """Return the parts as one parameter."""
    shapes = [part.shape for part in parts]
    rows = [shape[0] if shape else 0 for shape in shapes]
    whole = (sum(rows), *shapes[0][1:])
    alike = len({shape[1:] for shape in shapes}) == 1 and len({part.dtype for part in parts}) == 1
    if (
        not (all(rows) and alike and whole == tensor.shape)
        or interleaved(rows, rule.groups) is None
    ):
        raise UsageError.saying(
            "checkpoint.parts_unlike",
            name=shortened(tensor.name),
            shape=str(list(tensor.shape)),
            parts=", ".join(f"{shortened(part.name)} {list(part.shape)}" for part in parts),
            groups=rule.groups,
        )
    return FusedTensor(tensor.name, parts, rule.groups)


def fused_names(tensors: Iterable[StoredTensor]) -> set[str]:
    """Return the names of parameters; of one that is several, those of its parts."""
    each = (t.parts if isinstance(t, FusedTensor) else (t,) for t in tensors)
    return {part.name for parts in each for part in parts}


def check_used(rules: Sequence[FusedRule], names: Iterable[str]) -> None:
    """Refuse a rule that matches no parameter's cell.

    Raises:
        UsageError: there is one.
    """
    cells = {split_state(name)[1].rpartition(".")[0] for name in names}
    for rule in rules:
        if not any(rule.parts_of(cell) is not None for cell in cells):
            raise UsageError.saying("checkpoint.no_fused", pattern=rule.parts[0].source)
