"""What a comparison of two checkpoints concludes. All that report/ knows of it.

comparison/checkpoints.py makes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import field
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Messages
from mindrlhf_msprobe.findings import SCHEMA, TOOL, Finding, Outcome, RuleUse, Status
from mindrlhf_msprobe.findings.words import by_names
from mindrlhf_msprobe.storage.arrays.atomic import number_to_json

#: Parameters that verdict.json lists, the first ones that do not agree.
_MOST_LISTED = 1000


@dataclass(frozen=True)
class CheckpointComparison:
    """A finished comparison of two checkpoints, parameter by parameter.

    True only if something was compared and nothing differs.

    Attributes:
        a, b: their paths.
        kinds: what each is: ckpt, safetensors, sharded, or run.
        weights: one finding for each parameter, in the order of A, then of B.
        optimizer: the same for the state of optimizers.
        texts: the same for entries that are no tensors.
        coverage: what was not compared, and why.
        remarks: how the two were read and brought together.
        rules: the tolerances that were used, and how often.
        elements: how many elements were compared.
        tables: the files written, by name, relative to `output_path`.
        fingerprints: (name, fingerprint) of each, by which a later comparison knows them again.
    """

    a: str
    b: str
    kinds: tuple[str, str]
    weights: tuple[Finding, ...] = field(repr=False)
    optimizer: tuple[Finding, ...] = field(default=(), repr=False)
    texts: tuple[Finding, ...] = field(default=(), repr=False)
    coverage: Messages = ()
    remarks: Messages = ()
    rules: tuple[RuleUse, ...] = ()
    elements: int = 0
    output_path: str | None = None
    tables: tuple[str, ...] = ()
    fingerprints: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All of them: weights, then the state of optimizers, then texts."""
        return self.weights + self.optimizer + self.texts

    @property
    def status(self) -> Outcome:
        """The worst of all findings; incomparable where no tensor is in both."""
        tensors = self.weights + self.optimizer
        alone = Status.ONLY_IN_A, Status.ONLY_IN_B
        if all(finding.status in alone for finding in tensors):
            return Outcome.INCOMPARABLE
        found = {finding.status for finding in self.findings}
        if not all(status.agrees for status in found):
            return Outcome.DIVERGED
        close = Status.WITHIN_TOLERANCE in found
        return Outcome.WITHIN_TOLERANCE if close else Outcome.IDENTICAL

    @property
    def counts(self) -> dict[str, int]:
        """How many findings have each status that occurs."""
        counts = {status.value: 0 for status in Status}
        for finding in self.findings:
            counts[finding.status.value] += 1
        return {status: n for status, n in counts.items() if n}

    @property
    def suspicious(self) -> int:
        """How many findings agree and deserve a look: NaN or infinity on both sides."""
        return sum(1 for finding in self.findings if finding.suspicions)

    @property
    def differing(self) -> Iterator[Finding]:
        """The findings that do not agree, in their order."""
        return (finding for finding in self.findings if not finding.status.agrees)

    def __bool__(self) -> bool:
        return self.status in (Outcome.IDENTICAL, Outcome.WITHIN_TOLERANCE)

    def to_json(self) -> dict[str, Any]:
        """Return the content of verdict.json."""
        differing = [*self.differing]
        shown = [_shown(finding) for finding in differing[:_MOST_LISTED]]
        return {
            **{"schema": SCHEMA, "tool": TOOL, "of": "checkpoints", "status": self.status.value},
            "a": {"path": self.a, "kind": self.kinds[0]},
            "b": {"path": self.b, "kind": self.kinds[1]},
            **{"counts": self.counts, "optimizer": len(self.optimizer)},
            **by_names(self, "suspicious", "elements"),
            **{"first_divergence": shown[0] if shown else None, "differing": shown},
            "differing_not_listed": len(differing) - len(shown),
            **by_names(self, "tolerance=rules"),
            **{"coverage": _said(self.coverage), "notes": _said(self.remarks)},
            **{"tables": list(self.tables), "fingerprints": dict(self.fingerprints)},
        }

    def similarity(self) -> dict[str, Any]:
        """Return the content of msprobe's ckpt_similarity.json: what both sides have, by A's names.

        `l2` is |a−b|, `cos` the cosine of the angle between both (1.0 of two zeros, None beside
        one), both "NaN" beside an element that is not finite and None of unlike shapes; `numel` and
        `shape` are those of both sides, where they are not the same.
        """
        found: dict[str, Any] = {}
        for finding in self.weights + self.optimizer:
            if finding.a.shape is None or finding.b.shape is None:
                continue
            name = finding.record
            name = name if name not in found else f"{name} (rank {finding.rank})"
            found[name] = _similar(finding)
        return found


def _said(messages: Messages) -> list[dict[str, Any]]:
    return [{"text": str(said), **said.as_json()} for said in messages]


def _shown(finding: Finding) -> dict[str, Any]:
    metrics, measured = finding.metrics, {}
    if metrics is not None:
        measured = {
            "cosine": number_to_json(metrics.cosine),
            "l2": number_to_json(metrics.euclidean),
            "l2_relative": number_to_json(finding.distance),
            **by_names(metrics, "max_abs_err", "max_rel_err"),
            "different_percent": 100 - metrics.equal_percent,
        }
    return {
        **by_names(finding, "record", "rank", "status"),
        "dtype": [finding.a.dtype, finding.b.dtype],
        "shape": [finding.a.shape, finding.b.shape],
        **measured,
        "note": finding.note,
    }


def _similar(finding: Finding) -> dict[str, Any]:
    a, b, metrics = finding.a, finding.b, finding.metrics
    assert a.shape is not None
    assert b.shape is not None
    sizes = math.prod(a.shape), math.prod(b.shape)
    numel: Any = sizes[0] if sizes[0] == sizes[1] else list(sizes)
    shape = list(a.shape) if a.shape == b.shape else [list(a.shape), list(b.shape)]
    l2: Any = None
    cos: Any = None
    if metrics is not None and a.shape == b.shape:
        l2, cos = metrics.euclidean, metrics.cosine
        zeros = [norm == 0 for norm in (a.norm, b.norm)]
        if any(zeros):
            cos = 1.0 if all(zeros) else None
        if metrics.nan_a or metrics.nan_b or metrics.inf_a or metrics.inf_b:
            l2 = cos = math.nan
    return {"l2": number_to_json(l2), "cos": number_to_json(cos), "numel": numel, "shape": shape}
