"""Ranks that ran with other seeds, versions or settings; ranks that recorded nothing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from mindrlhf_msprobe.checks.checking import Check
from mindrlhf_msprobe.checks.reading.views import Step
from mindrlhf_msprobe.checks.registry.rule import rule
from mindrlhf_msprobe.checks.story import Found
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.findings.health import Evidence, Place, Severity

#: Section of run.json → the settings of it in which ranks should not differ; (): all.
_SECTIONS: dict[str, tuple[str, ...]] = {
    "versions": (),
    "determinism": (),
    "seeds": ("mindspore", "PYTHONHASHSEED"),
}


@rule("ranks.settings", causes=("check_ranks.cause_launch",))
def settings_alike(step: Step, check: Check) -> Iterator[Found]:
    """Every rank of the job recorded, and one does not run with another seed or version.

    Where each rank has a seed of its own that is meant so.
    """
    if check.memory.setdefault("done", False):
        return
    check.memory["done"] = True
    run = check.run
    files = {file.rank: file for file in run.run_files if file.rank is not None}
    if not files:
        check.not_checked(message("check_ranks.no_manifest"))
        return
    if run.missing_ranks:
        at = Place(step.number, run.missing_ranks[0])
        said = message("check_ranks.missing", ranks=run.missing_ranks, of=len(files))
        yield check.finding(said, at, same="missing", ranks=run.missing_ranks)
    for section, wanted in _SECTIONS.items():
        content = {rank: getattr(file, section) or {} for rank, file in files.items()}
        for name in sorted({name for of in content.values() for name in wanted or of}):
            values = {rank: of.get(name) for rank, of in content.items()}
            yield from _differing(check, step, section, name, values)


def _differing(
    check: Check, step: Step, section: str, name: str, values: dict[int, Any]
) -> Iterator[Found]:
    texts = {rank: json.dumps(value, sort_keys=True) for rank, value in values.items()}
    counts = Counter(texts.values())
    if len(counts) < 2:
        return
    usual, most = counts.most_common(1)[0]
    own_each = section == "seeds" and most == 1
    others = [rank for rank, text in sorted(texts.items()) if text != usual]
    if own_each and len(texts) > 2:
        return
    at = Place(step.number, others[0])
    yield check.finding(
        message("check_ranks.setting", section=section, name=name, ranks=others),
        at,
        severity=Severity.NOTE if own_each else Severity.WARNING,
        evidence=[Evidence(at, {name: {str(rank): text for rank, text in texts.items()}})],
        same=(section, name),
        ranks=others,
    )
