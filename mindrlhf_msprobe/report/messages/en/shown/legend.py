"""How to read the tables: statuses, colours, causes and columns."""

from __future__ import annotations

TEXTS: dict[str, str] = {
    "colour_differs_name": "red",
    "colour_differs": "does not agree",
    "colour_missing_name": "dark red",
    "colour_missing": "cannot be compared: missing on one side, or unreadable",
    "colour_suspicious_name": "orange",
    "colour_suspicious": ("agrees, but the column `suspicion` says why it deserves a look"),
    "colour_close_name": "yellow",
    "colour_close": ("agrees within a tolerance or by statistics only, not bit for bit"),
    "colour_plain_name": "none",
    "colour_plain": "agrees bit for bit",
    "status_unreadable": (
        "a file is missing, cut short or damaged, or nothing is known of the elements, such "
        "as beside NaN where only statistics were recorded"
    ),
    "status_only_in_a": "run B has no such record",
    "status_only_in_b": "run A has no such record",
    "status_dtype_mismatch": "the two have different dtypes",
    "status_shape_mismatch": "the two have different shapes; nothing is truncated",
    "status_non_finite": "NaN or infinite on one side where the other is finite",
    "status_different": "anything else that is not the same",
    "status_within_tolerance": (
        "not the same bytes, but within the tolerance of the column `tolerance`; or only "
        "statistics were recorded and these agree, which never proves identity"
    ),
    "status_identical": (
        "the same bytes, or the same values: two NaNs in one place are equal, −0.0 equals 0.0"
    ),
    "term_non_finite": "NaN or Inf on both sides",
    "term_grows": "error grows in this cell",
    "term_arises": "error arises in this cell",
    "suspicion_non_finite": (
        "both runs hold NaN or infinite elements in the same places: they agree, and both "
        "may be wrong"
    ),
    "suspicion_grows": (
        "within the tolerance, but the relative error of this output is at least 10 times "
        "the largest one of the cell's inputs and parameters"
    ),
    "suspicion_arises": (
        "within the tolerance, but the cell's inputs and parameters show no error at all"
    ),
    "cause_computation": (
        "inputs and parameters agree, the output does not: this cell is the origin"
    ),
    "cause_parameter": (
        "the parameters differ already: look at loading, weight synchronisation, the last update"
    ),
    "cause_input": "what entered the phase differs",
    "cause_data": "key data differ although every recorded cell before agrees",
    "cause_missing": "one run has no such record",
    "cause_shape": "another shape",
    "cause_dtype": "another dtype",
    "cause_non_finite": "NaN or infinite on one side only",
    "cause_stopped": "one run had stopped; everything that both recorded agrees",
    "cause_file": "a file was changed after it was recorded; nothing is known of the computation",
    "cause_unreadable": "a file cannot be read",
    "column_side_a": "run A, the baseline: the first of `compare`, -gp of msprobe",
    "column_side_b": "run B, under test: the second of `compare`, -tp of msprobe",
    "column_id": "the place inside a list or dict of key data",
    "column_equal": "share of equal elements",
    "column_first_mismatch": "flat index of the first different element",
    "column_max_abs": "largest |A−B| over finite elements",
    "column_max_rel": (
        "largest |A−B| / max(|A|, |B|); beside Max diff: that of the maximum, |B−A| / |A|"
    ),
    "column_err_ratio": ("share of elements whose relative error is below 1/1000, 5/1000, 1/100"),
    "column_cosine": "cosine of the angle between the two tensors",
    "column_euclidean": "L2 norm of A−B",
    "column_diff": "the statistic of B (NPU) less that of A (Bench)",
    "column_result": "pass for identical and within_tolerance, else error",
    "column_status": (
        "how the two records compare, one of those explained above; the first that fits"
    ),
    "column_note": (
        "what else there is to know about the status, e.g. where two texts first differ; in "
        "the preflight sheet: how the setting or parameter differs"
    ),
    "column_err_message": "the status, and the note behind it; empty for identical",
    "column_relative_of_statistics": (
        "|B−A| / |A| of the statistic, relative to Bench, as is MaxRelativeErr beside Max diff: "
        "numbers shown in percent; in CSV texts with a % sign, as in msprobe's own tables"
    ),
    "column_stack": (
        "where the run under test called the cell: all frames beside what goes in and beside "
        "what does not agree, the innermost alone beside an output that agrees"
    ),
    "column_texts": "the texts that were saved, of A and of B",
    "column_tolerance": (
        "what the record was compared by: a tolerance and the rule that gave it, or bitwise"
    ),
    "column_suspicion": (
        "why a record that agrees deserves a look all the same; empty if it does not"
    ),
    "column_factor": (
        "verdict sheet: the place's largest relative distance as a multiple of the one at "
        "the first divergence"
    ),
    "table_preflight": (
        "the sheet's columns A and B hold texts, also where a setting is a number: it may be "
        "1, True or the text 1"
    ),
    "table_csv": (
        "a cell that a spreadsheet would take for a formula, e.g. one that begins with =, "
        "begins with ' instead; take it off to have the text as it was"
    ),
}
