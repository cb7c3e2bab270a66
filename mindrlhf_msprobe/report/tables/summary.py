"""A comparison → summary.xlsx: the verdict, what may explain it, and how to read the tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mindrlhf_msprobe.common.text.language import speaking
from mindrlhf_msprobe.findings import (
    Comparison,
    Divergence,
    Outcome,
    Preflight,
    Spread,
    Status,
    Weights,
)
from mindrlhf_msprobe.report.console.analysis.inside import inside_words
from mindrlhf_msprobe.report.console.analysis.preflight import check_lines, values_of
from mindrlhf_msprobe.report.console.shared.wording import (
    before,
    chosen_of,
    earlier_of,
    occasion_in_words,
    origin_in_words,
    ranks_in_words,
    settings_file,
    weights_of,
)
from mindrlhf_msprobe.report.formats.colours import CLOSE, DIFFERS, MISSING, PLAIN, colour_of
from mindrlhf_msprobe.report.formats.sheets import Row, Sheet, Table
from mindrlhf_msprobe.report.messages import say, text_of
from mindrlhf_msprobe.report.tables.columns import BITWISE
from mindrlhf_msprobe.report.tables.language import in_language
from mindrlhf_msprobe.report.tables.legend import legend_sheet
from mindrlhf_msprobe.report.tables.overview import Links, overview_sheet

STEM = "summary"


def summary_of(comparison: Comparison, links: Links | None = None, lang: str = "en") -> Table:
    """Return the table that stands first among a comparison's tables.

    Args:
        links: what the other tables are called.
        lang: `en` or `zh`, for names, headers and labels.
    """
    with speaking(lang):
        sheets = (
            _verdict_sheet(comparison),
            overview_sheet(comparison, links or {}),
            preflight_sheet(comparison.preflight),
            _coverage_sheet(comparison),
            _tolerance_sheet(comparison),
            legend_sheet(),
        )
    return Table(STEM, tuple(in_language(sheet, lang) for sheet in sheets))


_VERDICT_COLUMNS = (
    ("section", 12),
    ("item", 34),
    ("value", 90),
    ("different", 11),
    ("compared", 11),
    ("max_abs_err", 14),
    ("max_rel_err", 14),
    ("factor", 12),
)


#: The colour of a comparison's outcome: as that of a record which ended like it.
_OUTCOMES = {
    Outcome.IDENTICAL: PLAIN,
    Outcome.WITHIN_TOLERANCE: CLOSE,
    Outcome.DIVERGED: DIFFERS,
    Outcome.INCOMPARABLE: MISSING,
}


def _verdict_sheet(comparison: Comparison) -> Sheet:
    verdict, first = comparison.verdict, comparison.verdict.first_divergence
    rows: list[Row] = [
        _row("verdict", "status", verdict.status.value, colour=_OUTCOMES[verdict.status]),
        _row("verdict", "A (baseline)", comparison.run_a),
        _row("verdict", "B (under test)", comparison.run_b),
    ]
    if comparison.earlier is not None:
        rows.append(_row("earlier", comparison.earlier[1].value, earlier_of(*comparison.earlier)))
    if comparison.chosen is not None:
        rows += [_row("chosen", None, line) for line in chosen_of(comparison.chosen)]
    if first is not None:
        rows += _divergence_rows(first)
    rows += [_row("ranks", None, line) for line in ranks_in_words(verdict)]
    rows += _counts(comparison)
    rows += [row for place in verdict.spread for row in _spread_rows(place)]
    return Sheet.from_rows("verdict", _VERDICT_COLUMNS, rows)


def _row(*values: Any, colour: str = PLAIN) -> Row:
    return colour, values


def _divergence_rows(first: Divergence) -> list[Row]:
    rows = [
        ("where", occasion_in_words(first)),
        ("record", first.record),
        *([("argument", first.argument)] if first.argument else []),
        ("origin", first.entry or first.record),
        *([("operator", origin_in_words(first))] if first.operator else []),
        *([("source", first.source)] if first.source else []),
        ("cause", first.cause.value),
        ("explanation", first.explanation),
        ("inside", inside_words(first.inside) or say("tables.nothing_holds")),
        ("max_abs_err", first.max_abs_err),
        ("max_rel_err", first.max_rel_err),
        ("micro_step", None if first.key is None else first.occasion.number),
        ("opening (of the phase in this step)", first.occasion.number if not first.key else None),
        ("culprit", first.culprit.code.value if first.culprit else None),
        *(("check first", line) for line in check_lines(first.check_first)),
        ("agreed before", before(first) or say("tables.nothing_before")),
        ("agreed_before (records of this step)", first.agreed_before),
        ("agreed_phases", first.agreed_phases),
        ("agreed_steps", first.agreed_steps),
        ("last_agreeing", first.last_agreeing),
    ]
    if first.next_step is not None:
        place = settings_file(first.next_step)
        rows.append(("next step", _yaml({place: first.next_step})))
        rows.append(("next step: bytes of one rank", first.next_step_bytes))
    return [_row("verdict", *row) for row in rows]


def _yaml(section: dict[str, Any]) -> str:
    """Return a section as it can be pasted into a YAML file."""
    import yaml  # slow to import

    return str(yaml.safe_dump(section, sort_keys=False, allow_unicode=True, width=10_000)).rstrip()


def _counts(comparison: Comparison) -> Iterator[Row]:
    verdict = comparison.verdict
    yield _row("counts", "records", verdict.compared)
    for status in Status:
        number = verdict.counts.get(status.value, 0)
        yield _row("counts", status.value, number, colour=colour_of(status) if number else PLAIN)
    suspicious = sum(1 for finding in comparison.findings if finding.suspicions)
    suspicious += sum(agreement.suspicious for agreement in comparison.agreements)
    yield _row("counts", "of those that agree, suspicious", suspicious)
    for what, number in (
        ("steps", verdict.steps),
        ("ranks", verdict.ranks),
        ("phases", len(verdict.phases)),
    ):
        yield _row("counts", what, number)


def _spread_rows(place: Spread, phase: str = "") -> Iterator[Row]:
    yield _row(
        "spread",
        place.place,
        say("tables.layer_of", phase=phase) if phase else None,
        place.different,
        place.compared,
        place.max_abs_err,
        place.max_rel_err,
        place.factor,
    )
    for layer in place.layers:
        yield from _spread_rows(layer, place.place)


_PREFLIGHT_COLUMNS = (("section", 18), ("name", 50), ("A", 40), ("B", 40), ("note", 60))


def preflight_sheet(preflight: Preflight) -> Sheet:
    """Return the sheet of what differs before any tensor."""
    rows = [row for weights in preflight.weights for row in _weights_rows(weights)]
    rows += [
        _row(say("preflight.section", name=found.section), text_of(found.label), *values_of(found))
        for found in preflight.differences
    ]
    rows += [_row("unknown", None, None, None, reason) for reason in preflight.unknown]
    if not rows:
        rows = [_row(None, None, None, None, say("tables.nothing_differs"))]
    return Sheet.from_rows("preflight", _PREFLIGHT_COLUMNS, rows)


def _weights_rows(weights: Weights) -> Iterator[Row]:
    section = "initial_weights"
    yield _row(section, weights.role, None, None, weights_of(weights))
    for names, what in (
        (weights.different, say("tables.differs")),
        (weights.only_in_a, say("tables.only_in_a")),
        (weights.only_in_b, say("tables.only_in_b")),
    ):
        for name in names:
            yield _row(section, f"{weights.role}: {name}", None, None, what)


_COVERAGE_COLUMNS = (("kind", 14), ("what", 100), ("only in", 10), ("records", 12))


def _coverage_sheet(comparison: Comparison) -> Sheet:
    rows = [
        _row(
            "not compared",
            gap.reason,
            say("tables.both") if gap.only_in == "both" else gap.only_in,
            gap.records,
        )
        for gap in comparison.verdict.coverage
    ]
    rows += [_row("note", note, None, None) for note in comparison.notes]
    rows += [_row("problem", problem, None, None) for problem in comparison.problems]
    if not rows:
        rows = [_row(None, say("tables.all_compared"), None, None)]
    return Sheet.from_rows("coverage", _COVERAGE_COLUMNS, rows)


_TOLERANCE_COLUMNS = (("rule", 80), ("records", 12), ("passed only by it", 20))


def _tolerance_sheet(comparison: Comparison) -> Sheet:
    rows = [_row(rule.rule, rule.records, rule.passed) for rule in comparison.rules]
    bitwise = sum(1 for finding in comparison.findings if not finding.compared_by)
    if comparison.agreements:  # which say nothing of it
        bitwise = comparison.verdict.compared - sum(rule.records for rule in comparison.rules)
    rows.append(_row(BITWISE, bitwise, None))
    return Sheet.from_rows("tolerance", _TOLERANCE_COLUMNS, rows)
