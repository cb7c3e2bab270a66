"""What the report page says of itself, in English."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.en.words import counted, some


def _left_out(one: str, several: str, how: str) -> Text:
    def said(count: int) -> str:
        return f"{count:,} {one if count == 1 else several} {how}"

    return said


def _written(file: str, bytes: int, seconds: float) -> str:
    return f"Page: {file} ({bytes / 1e6:.1f} MB, {seconds:.1f} s)"


TEXTS: dict[str, Text] = {
    "fact_state": "state",
    "fact_steps": "steps",
    "fact_ranks": "ranks",
    "file": "Page: {file}",
    "no_file": "{file!r} cannot hold a page: give a file, e.g. -o report.html",
    "exists": "{file!r} exists and is not a page of this tool: name another file, or remove it",
    "inside_run": (
        "{file!r} lies inside the run {run!r}, which is evidence: write the page elsewhere"
    ),
    "unwritten": "the page {file!r} cannot be written: {error}",
    "one_or_two_runs": "report takes one run, or two to compare, not {runs}",
    "of_one_run": "--html writes the page of one run, not of {runs}: check them one by one",
    "not_installed": (
        "a page needs the extra `report` ({why}): pip install 'mindrlhf_msprobe[report]'"
    ),
    "mismatch_no_phases": (
        "no step has both {rollout} and {training} recorded, which hold the rollout's and the "
        "training's values of the same tokens: record both (actor_infer_dump, actor_train_dump)"
    ),
    "mismatch_no_tokens": (
        "training and inference are not compared: nothing says which tokens went through the "
        "networks. Record with task: sketch (or tensor), token_range_start: 0 and a "
        "token_range_end behind the last token"
    ),
    "mismatch_values_left": lambda names, why: (
        f"training against inference: {counted(len(names), 'value')} not compared "
        f"({some(names[:4], len(names) - 4)}): {why}"
    ),
    "mismatch_weights_left": lambda names: (
        f"training against inference: {counted(len(names), 'weight')} not compared "
        f"({some(names[:4], len(names) - 4)})"
    ),
    "mismatch_rows_left": (
        "training against inference: {left} of {tokens} tokens of the rollout were not aligned"
    ),
    "loading": (
        "Loading … If this line stays, the file is not whole: it should have {size} bytes. "
        "Copy it again."
    ),
    "needs_script": "This page needs JavaScript.",
    "steps_left_out": (
        "the maps show every n-th step and all steps of interest, as there are too many values"
    ),
    "written": _written,
    "curves_left_out": _left_out("curve is", "curves are", "not shown: there are too many"),
    "findings_left_out": _left_out("finding is", "findings are", "not shown: there are too many"),
    "places_left_out": _left_out(
        "step of a rank is",
        "steps of ranks are",
        "aggregated: their records are not listed one by one",
    ),
    "tensors_left_out": _left_out(
        "stored tensor that differs was",
        "stored tensors that differ were",
        "not read: too large, or too many",
    ),
    "texts_left_out": _left_out(
        "step of a rank has",
        "steps of ranks have",
        "prompts and responses that are not shown, for size",
    ),
    "measure_distance": "relative distance",
    "explain_distance": (
        "‖a−b‖ / max(‖a‖, ‖b‖) of what the cell returned: of the elements where they were "
        "stored, else of the recorded L2 norms"
    ),
    "measure_max_abs_err": "max abs error",
    "explain_max_abs_err": (
        "the largest |a−b| over all elements; known where tensors were stored, or all bytes agree"
    ),
    "measure_growth": "growth in this cell",
    "explain_growth": (
        "the relative distance of what the cell returned over that of what it was given; "
        "infinite where its inputs and parameters agree and its output does not"
    ),
    "measure_norm": "L2 norm of A",
    "explain_norm": "the largest L2 norm of what the cell returned",
    "measure_norm_b": "L2 norm of B",
    "explain_norm_b": "the largest L2 norm of what the cell returned",
    "measure_non_finite": "NaN and Inf",
    "explain_non_finite": "how many elements of what the cell returned are NaN or infinite",
    "measure_status": "status",
    "explain_status": "the worst status of what the cell returned",
    "measure_max": "largest value",
    "explain_max": "the largest |value| of what the cell returned",
    "measure_findings": "findings",
    "explain_findings": "how many findings of the checks are about the cell",
    "group_loss": "Loss",
    "group_rollout": "Rollout against training",
    "group_kl": "KL",
    "group_reward": "Rewards",
    "group_advantages": "Advantages, returns, values",
    "group_log_probs": "Log-probabilities and entropy",
    "group_ratio": "Ratio and clipping",
    "group_lengths": "Lengths",
    "group_gradients": "Gradient norms",
    "group_weights": "Weights and optimizer",
    "group_other": "Other",
    "measure_norm_of_run": "L2 norm",
    "explain_norm_of_run": "the largest L2 norm of what the cell returned",
    "measure_distance_of_norms": "relative distance of norms (≥)",
    "explain_distance_of_norms": (
        "|‖a‖ − ‖b‖| / max(‖a‖, ‖b‖) of what the cell returned: no elements were stored, so this "
        "is the least that it can be. A layer that normalises nearly hides a difference; task: "
        "tensor shows it"
    ),
    "measure_growth_of_norms": "growth of the norms' distance",
    "explain_growth_of_norms": (
        "how the distance of the L2 norms grew in the cell: no elements were stored, so it may "
        "mislead behind layers that normalise; infinite where inputs and parameters agree and "
        "the output does not, which is certain"
    ),
}
