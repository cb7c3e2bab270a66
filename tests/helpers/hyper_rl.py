"""Rollout files as hyper-parallel's RL trainer writes them, written from its source."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Tensors = dict[str, np.ndarray]


def rollout(seed: tuple[int, ...], samples: int = 4, asked: int = 5, answered: int = 6) -> Tensors:
    """Return a batch: prompts padded before, responses behind, of drawn lengths."""
    random = np.random.default_rng(seed)
    width = asked + answered
    found = {
        "sequences": np.zeros((samples, width), np.int64),
        "attention_mask": np.zeros((samples, width), np.int32),
        "action_mask": np.zeros((samples, width), np.int32),
        "raw_logprobs": np.zeros((samples, width - 1), np.float32),
    }
    for row in range(samples):
        prompt, response = int(random.integers(1, asked + 1)), int(random.integers(1, answered + 1))
        real = slice(asked - prompt, asked + response)
        found["sequences"][row, real] = random.integers(3, 90, prompt + response)
        found["attention_mask"][row, real] = 1
        found["action_mask"][row, asked : asked + response] = 1
        log_probs = -random.gamma(1, 0.7, response).astype(np.float32)
        found["raw_logprobs"][row, asked - 1 : asked - 1 + response] = log_probs
    return found


def described(array: np.ndarray) -> dict[str, Any]:
    """Return a tensor as a file has it."""
    return {
        "dtype": str(array.dtype),
        "shape": [*array.shape],
        "sha256": hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest(),
        "values": array.tolist(),
    }


def write_rollout(
    root: Path,
    version: int,
    tensors: Tensors,
    *,
    rank: int = 0,
    worker: int | None = None,
    strategy: str = "direct_reshard",
    change: Callable[[dict[str, Any]], object] = lambda content: None,
    **more: Any,
) -> Path:
    """Write the file of a version of the policy and a rank; return its path.

    Args:
        worker: the version that generated; None: the trainer's.
        change: alters the content before it is written.
        more: further entries.
    """
    worker = version if worker is None else worker
    content: dict[str, Any] = {
        **{"strategy": strategy, "oracle_run_id": "run", "trainer_rank": rank},
        **{"policy_version": version, "worker_policy_version": worker},
        "worker_policy_fingerprint": f"digest-v{worker}",
        **{name: described(array) for name, array in tensors.items()},
        **more,
    }
    change(content)
    path = root / f"{strategy}-policy{version}-rank{rank}.json"
    root.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
    return path
