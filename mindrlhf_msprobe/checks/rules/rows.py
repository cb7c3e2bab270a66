"""Key data as arrays, and which of their rows belong together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from mindrlhf_msprobe.checks.check import Check
from mindrlhf_msprobe.checks.next_config import PARAMETERS
from mindrlhf_msprobe.checks.views import Step, value_of
from mindrlhf_msprobe.sequences.losses import before_zeros
from mindrlhf_msprobe.storage.place import Place
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.reading.reader import Run

#: Rounding of a log-probability (nats): of float32, and of 16 bits, which hold 8 to 11 of a number.
_ROUNDING = {"Float16": 2e-2, "BFloat16": 1e-1}


def floats_of(datum: KeyDatum) -> np.ndarray | None:
    """Return what was saved as one float64 array; None where it holds no numbers.

    A list of arrays of one shape, or of numbers, becomes one with a further first axis.
    """
    try:
        array = np.asarray(value_of(datum))
    except ValueError:  # arrays of several shapes
        return None
    are_numbers = array.dtype.kind in "biuf" and array.size > 0
    return array.astype(np.float64) if are_numbers else None


def counted_floats(step: Step, datum: KeyDatum) -> np.ndarray | None:
    """Return a save by token as float64, NaN where its tokens do not count; None without numbers.

    Behind the ends of responses nothing counts, nor what the mask of the loss leaves out. Where
    nothing says what counts, zeros that a row ends with are behind its end.
    """
    values = floats_of(datum)
    if values is None or not values.ndim:
        return values
    mask = step.mask_of(datum, values)
    if mask is not None:
        return np.where(mask, values, np.nan)
    padded = ~before_zeros(values) & (values != 0).any(axis=-1, keepdims=True)
    return np.where(padded, np.nan, values)


def finite_floats(step: Step, data: Iterable[KeyDatum]) -> np.ndarray:
    """Return the finite numbers of saves that count, float64, one save behind the other."""
    found = (counted_floats(step, datum) for datum in data)
    whole = np.concatenate([np.empty(0), *(one.reshape(-1) for one in found if one is not None)])
    return whole[np.isfinite(whole)]


def rounding(*data: KeyDatum) -> float:
    """Return how far log-probabilities of these data may differ by rounding alone, in nats."""
    dtypes = {record.leaf.dtype or "" for datum in data for record in datum.records}
    return max((_ROUNDING.get(dtype, 2e-3) for dtype in dtypes), default=2e-3)


def texts_or_rows(datum: KeyDatum) -> list[Any]:
    """Return the samples of prompts or responses, each as something that can be compared.

    A text stays one; a row of token ids becomes a tuple of integers.
    """
    value = value_of(datum)
    if isinstance(value, str):
        return [value]
    if isinstance(value, np.ndarray):
        value = list(value) if value.ndim == 2 and value.dtype.kind in "iu" else []
    samples: list[Any] = []
    for item in value if isinstance(value, (list, tuple)) else ():
        if isinstance(item, np.ndarray) and item.dtype.kind in "iu":
            samples.append(tuple(item.reshape(-1).tolist()))
        else:
            samples.append(item if isinstance(item, (str, int, float)) else str(item))
    return samples


def groups_of(samples: Sequence[Any]) -> dict[Any, list[int]]:
    """Return which samples are of the same prompt: prompt → their positions."""
    found: dict[Any, list[int]] = {}
    for position, sample in enumerate(samples):
        found.setdefault(sample, []).append(position)
    return found


def begins_with_random_weights(run: Run) -> bool:
    """Return whether actor and reference are known to be loaded from no checkpoint."""
    return any(
        (file.checkpoints or {}).get("actor") == (file.checkpoints or {}).get("reference") == ""
        for file in run.run_files
    )


def actor_and_reference(check: Check, at: Place, cell: str | None = None) -> dict[str, Any] | None:
    """Return how to record what tells the reference from the actor, in the step of a place.

    Their parameters, with the statistics of every cell; where those are there, all elements.

    Args:
        cell: of which elements are enough.
    """
    phases = ("actor_compute_log_prob", "reference_compute_log_prob")
    told = check.next_recording(at, phases=phases, also=PARAMETERS)
    if told is None:
        told = check.next_recording(at, phases=phases, cell=cell, elements=True)
    return told
