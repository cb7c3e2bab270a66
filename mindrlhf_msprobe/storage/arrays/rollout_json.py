"""A rollout of hyper-parallel's RL trainer, one JSON file for a version of the policy and a rank.

A tensor in it is an object of dtype, shape, the SHA-256 of its bytes, and its values in nested
lists:

    sequences        integers [samples, tokens]: prompt and response, padded
    attention_mask   [samples, tokens]: 0 is padding
    action_mask      [samples, tokens]: 1 is a token that the policy sampled
    raw_logprobs     float32 [samples, tokens - 1]: column t is of token t + 1, 0 if not sampled

Read are the prompts, and from the first sampled token of each sample up to the last one the
tokens, their log-probabilities, and which of them were sampled. Written from the source of the
trainer (`rl/trainer.py`, 2026), which needs an accelerator: unrun.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.phases import POLICY_VERSIONS
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError

_INTEGERS = ("int64", "int32", "int16", "int8")
#: The tensors of a file, and the dtypes that they may have.
_TENSORS = {
    **dict.fromkeys(("sequences", "attention_mask", "action_mask"), _INTEGERS),
    "raw_logprobs": ("float32", "float64", "float16"),
}
#: The keys that they are read as.
ROWS = ("rollout_prompts", "rollout_tokens", "rollout_log_prob", "action_mask")
#: In which tensors and versions a rollout differs from its oracle, as the trainer found.
ORACLE = "oracle_mismatches"
#: Stands behind the last token of a row.
NO_TOKEN = -1


@dataclass(frozen=True)
class Rollout:
    """What one file holds.

    Attributes:
        rows: by key, [samples, tokens].
        values: by key, a number, a text, or None; nothing that is none of these.
        place: the policy version and the rank.
    """

    rows: Mapping[str, np.ndarray]
    values: Mapping[str, Any]
    place: tuple[Any, Any]


def open_rows(location: str) -> np.ndarray:
    """Return the rows that stand at `<file>#<key>`.

    Raises:
        ArrayFileError: the file cannot be read, or is no rollout any more.
    """
    name, _, key = location.rpartition("#")
    path = Path(name)
    try:
        return read_rollout(path.parent, path).rows[key]
    except (OSError, ValueError) as error:
        raise ArrayFileError(layout.why_unread(error)) from None


def read_rollout(root: Path, path: Path) -> Rollout:
    """Read a file of the run in `root`.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no rollout.
    """
    found = path.lstat()
    return _read_file(root, path, found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=16)
def _read_file(root: Path, path: Path, size: int, changed: int) -> Rollout:
    content = layout.read_json(root, path, bounds.DATA)
    if not isinstance(content, dict):
        raise layout.UnreadError.saying("unread.no_object")
    tensors = {name: _tensor(content.get(name), name, kind) for name, kind in _TENSORS.items()}
    for name, array in tensors.items():
        if hashlib.sha256(array.tobytes()).hexdigest() != content[name].get("sha256"):
            raise layout.UnreadError.saying("unread.other_digest", name=name)
    values: dict[str, Any] = {}
    for name in (*POLICY_VERSIONS, ORACLE):
        value = content.get(name)
        value = ", ".join(map(str, value)) if isinstance(value, list) else value
        if isinstance(value, str):
            values[name] = value[: bounds.NAME]
        elif value is None or bounds.is_place(value):
            values[name] = value
    place = content.get("policy_version"), content.get("trainer_rank")
    return Rollout(_rows(**tensors), values, place)


def _tensor(content: Any, name: str, dtypes: Sequence[str]) -> np.ndarray:
    """Return a tensor of a file.

    Raises:
        ValueError: it is none of two dimensions, or of another dtype than a rollout has.
    """
    try:
        if content["dtype"] in dtypes:  # before it says how much is taken for it
            array = np.array(content["values"], content["dtype"]).reshape(tuple(content["shape"]))
            if array.ndim == 2:
                return array
    except (TypeError, ValueError, KeyError, OverflowError):
        pass
    raise layout.UnreadError.saying("unread.no_tensor_of", name=name)


def _rows(
    sequences: np.ndarray,
    attention_mask: np.ndarray,
    action_mask: np.ndarray,
    raw_logprobs: np.ndarray,
) -> dict[str, np.ndarray]:
    """Return prompts, tokens, log-probabilities and mask of a rollout, a sample a row.

    Raises:
        ValueError: the tensors are not of one batch.
    """
    samples, tokens = sequences.shape
    of_tokens = attention_mask.shape == action_mask.shape == sequences.shape
    if not of_tokens or raw_logprobs.shape != (samples, max(tokens - 1, 0)):
        shapes = ", ".join(
            str([*tensor.shape])
            for tensor in (sequences, attention_mask, action_mask, raw_logprobs)
        )
        raise layout.UnreadError.saying("unread.other_batch", shapes=shapes)
    log_probs = np.zeros(sequences.shape, raw_logprobs.dtype)
    log_probs[:, 1:] = raw_logprobs
    sampled = action_mask != 0
    first = np.where(sampled.any(axis=1), sampled.argmax(axis=1), tokens)
    end = np.where(sampled.any(axis=1), tokens - sampled[:, ::-1].argmax(axis=1), tokens)
    prompts = [
        row[:start][real[:start] != 0] for row, real, start in zip(sequences, attention_mask, first)
    ]
    answers = (
        [row[start:stop] for row, start, stop in zip(table, first, end)]
        for table in (sequences, log_probs, action_mask)
    )
    fills = (NO_TOKEN, NO_TOKEN, 0.0, 0)
    found = {}
    for key, rows, fill in zip(ROWS, (prompts, *(list(of) for of in answers)), fills):
        # Rows of unlike lengths as a table, what is behind the end filled.
        dtype = rows[0].dtype if rows else np.dtype(type(fill))
        found[key] = np.full((len(rows), max(map(len, rows), default=0)), fill, dtype)
        for place, row in enumerate(rows):
            found[key][place, : len(row)] = row
    return found
