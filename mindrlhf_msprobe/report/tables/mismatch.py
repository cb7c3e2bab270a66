"""Training against inference → mismatch.xlsx and mismatch.json."""

from __future__ import annotations

from pathlib import Path

from mindrlhf_msprobe.common.language import speaking
from mindrlhf_msprobe.common.message import in_words
from mindrlhf_msprobe.findings.mismatch import Mismatch, Mismatches, Stage
from mindrlhf_msprobe.phases import ROLLOUT_CORR
from mindrlhf_msprobe.report.sheets import (
    CLOSE,
    DIFFERS,
    PLAIN,
    SUSPICIOUS,
    Row,
    Sheet,
)
from mindrlhf_msprobe.report.trends import is_metric_file, metric_files, write_metrics
from mindrlhf_msprobe.report.xlsx import AnswerFiles, json_text, write_xlsx
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.outputs import Output, written

_PLACE = (("step", 7), ("rank", 7))
_VALUES = (
    *_PLACE,
    *(("cell", 50), ("io", 8), ("path", 10), ("apart", 12), ("largest row", 12)),
    *(("entered", 12), ("rounding explains", 16), ("rows", 8), ("rows not equal", 14)),
    *(("rows born apart", 14), ("dtype of rollout", 16), ("dtype of training", 16)),
    *(("worst sample", 12), ("worst position", 12), ("worst token", 12), ("text", 40)),
)
FILES = AnswerFiles(
    "mismatch.xlsx", _VALUES, "mismatch.json", ("schema", "runs", "status", "steps")
)
_WEIGHTS = (
    *_PLACE,
    *(("rollout", 50), ("training", 60), ("relative distance", 16), ("since step", 10)),
    ("values of step", 12),
)
_METRICS = (*_PLACE, ("metric", 44), ("value", 16))
_SAMPLED = (
    *_PLACE,
    *(("row of responses", 14), ("place in response", 14), ("id of token", 12)),
    ("log-prob of rollout", 20),
    ("log-prob of training", 20),
)
_EXPERTS = (
    *_PLACE,
    *(("cell", 50), ("call", 7), ("experts of a token", 16), ("tokens", 10), ("other experts", 14)),
    *(("other before the router", 18), ("other by the router", 18)),
)
_REST = (*_PLACE, ("what", 16), ("value", 60), ("why", 90))


def write_mismatch(found: Mismatches, output: str | Path, lang: str | None = None) -> list[Path]:
    """Write the workbook, the JSON and key data into a directory and return their paths.

    Args:
        lang: `en` or `zh`, of the workbook; None: the locale's.

    Raises:
        RunError: they cannot be written there.
    """
    with speaking(lang):
        sheets = _sheets(found)
    outputs = FILES.outputs(output)
    directory = outputs[0].path.parent
    held = [one for one in found.found if one.metrics]
    saves = [metric_files(directory, (one.step, one.rank, 0), one.metrics) for one in held]
    files = [Output(path, is_metric_file) for paths in saves for path in paths]
    with written(*outputs, *files, runs=found.runs) as (table, result, *parts):
        write_xlsx(table, sheets)
        result.write_bytes(json_text(found.to_json()))
        for one, paths in zip(held, saves):
            write_metrics(parts[: len(paths)], paths, one.metrics)
            del parts[: len(paths)]
    keys = [directory / layout.KEY_DATA_DIR / ROLLOUT_CORR] if saves else []
    return [*(output.path for output in outputs), *keys]


def _sheets(found: Mismatches) -> list[Sheet]:
    values = [_value(one, stage) for one in found.found for stage in one.stages]
    weights: list[Row] = [
        (
            DIFFERS,
            (one.step, one.rank, w.rollout, ", ".join(w.training), w.relative, w.since, w.stale),
        )
        for one in found.found
        for w in one.weights
    ]
    metrics: list[Row] = [
        (PLAIN, (one.step, one.rank, name, value))
        for one in found.found
        for name, value in one.metrics.items()
    ]
    sampled: list[Row] = [
        (PLAIN, (one.step, one.rank, t.row, t.place, t.id, t.rollout, t.training))
        for one in found.found
        for t in one.sampled
    ]
    experts: list[Row] = [
        (DIFFERS if of.others else PLAIN, (one.step, one.rank, *of.to_json().values()))
        for one in found.found
        for of in one.experts
    ]
    rest: list[Row] = []
    for one in found.found:
        place = one.step, one.rank
        rest += [(PLAIN, (*place, "conclusion", one.status.value, in_words(s))) for s in one.said]
        rest += [
            (PLAIN, (*place, "not compared", name, in_words(why))) for name, why in one.not_compared
        ]
        rest += [(PLAIN, (*place, "note", "", in_words(note))) for note in one.notes]
    return [
        Sheet.ours("values", _VALUES, values),
        Sheet.ours("weights", _WEIGHTS, weights),
        Sheet.ours("metrics", _METRICS, metrics),
        Sheet.ours("worst sampled tokens", _SAMPLED, sampled),
        *([Sheet.ours("experts", _EXPERTS, experts)] if experts else []),
        Sheet.ours("remarks", _REST, rest),
    ]


def _value(one: Mismatch, stage: Stage) -> Row:
    born = stage.born and stage.lasting
    colour = (
        DIFFERS if stage == one.first else SUSPICIOUS if born else CLOSE if stage.unequal else PLAIN
    )
    worst = stage.worst[0] if stage.worst else None
    token = (None,) * 4 if worst is None else (worst.sample, worst.position, worst.id, worst.text)
    return (
        colour,
        (
            *(one.step, one.rank, stage.cell, stage.io, stage.path, stage.apart, stage.most),
            *(stage.entered, stage.allowed, stage.rows, stage.unequal, stage.born),
            *(*stage.dtypes, *token),
        ),
    )
