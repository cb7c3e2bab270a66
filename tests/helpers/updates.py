"""Steps of a GRPO training in numpy, recorded through the real writer: forward and backward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from helpers.runs import Fault, Recording
from mindrlhf_msprobe.storage.journal_line import JournalLine

LOG_PROB, UPDATE = "actor_compute_log_prob", "actor_update"
ROOT = "Cell.root.Net"
LINE = "File /home/me/trainer.py, line 41, in policy_loss, \n logits = actor(tokens) / temperature"
VOCABULARY = 9


def record_updates(
    path: Path,
    *faults: Fault,
    steps: int = 1,
    updates: int = 1,
    aggregation: str = "tokens",
    clip: float = 0.2,
    beta: float = 0.05,
    keys: Sequence[str] = ("log_prob", "ratio", "kl", "kl_loss", "loss"),
    lengths: Sequence[int] = (7, 4, 2, 6),
    with_mask: bool = True,
    gives: Sequence[str] = (),
    rewarded: bool = True,
    off_policy: bool = False,
    names: Mapping[str, str] | None = None,
    **settings: Any,
) -> Path:
    """Record a training whose policy is one matrix, and return its directory.

    Places of faults: responses, old_logits, old_log_prob, rewards, logits (of an update),
    temperature (of the update's log_prob), log_prob, loss, gradient.

    Args:
        aggregation: what one number is made of the tokens: the mean over `tokens`, the mean of
            the `sequences`' means, the mean over all `places`; or the `sum`, by sequence (`sums`),
            or over the number of places (`area`).
        keys: what an update saves.
        with_mask: whether the mask of the responses is saved.
        gives: which of advantages, completion_mask, old_per_token_logps the loss_inputs hold.
        rewarded: whether rewards and advantages are saved.
        off_policy: whether the first update has other weights than the old policy.
        names: what the trainer calls keys, by their standard names.
    """
    called = names or {}
    recording = Recording(path, faults=faults, **{"actor_infer_dump": False, **settings})
    draw = np.random.default_rng(7)
    head = draw.normal(size=(VOCABULARY, VOCABULARY)).astype(np.float32)
    rows, width = len(lengths), max(lengths)
    for _ in range(steps):
        tokens = draw.integers(0, VOCABULARY, size=(rows, width + 1))
        tokens = recording.touch("responses", tokens)
        mask = (np.arange(width) < np.array(lengths)[:, None]).astype(np.float32)
        recording.data(called.get("responses", "responses"), tokens[:, 1:])
        if with_mask:
            recording.data("response_mask", mask)
        with recording.phase(LOG_PROB):
            logits = _forward(recording, head, tokens, "old_logits")
            old = recording.touch("old_log_prob", _log_prob(logits, tokens))
        recording.data(called.get("old_log_prob", "old_log_prob"), old)
        reference = (old + draw.normal(size=old.shape) * 0.1).astype(np.float32)
        recording.data(called.get("ref_log_prob", "ref_log_prob"), reference)
        rewards = recording.touch("rewards", draw.normal(size=rows).astype(np.float32))
        advantages = (rewards - rewards.mean()) / rewards.std()
        if rewarded:
            recording.data("rewards", rewards)
            recording.data("advantages", advantages)
        given = {"advantages": advantages, "completion_mask": mask, "old_per_token_logps": old}
        if off_policy:
            head = head + np.float32(0.05) * draw.normal(size=head.shape).astype(np.float32)
        for number in range(updates):
            if gives:
                recording.data("loss_inputs", {name: given[name] for name in gives})
            with recording.phase(UPDATE):
                logits = _forward(recording, head, tokens, "logits")
                scale = float(recording.touch("temperature", np.float32(1.0)))
                log_prob = _log_prob(logits / np.float32(scale), tokens)
                log_prob = recording.touch("log_prob", log_prob)
                made = _loss(log_prob, old, reference, advantages, mask, aggregation, clip, beta)
                made["loss"] = recording.touch("loss", made["loss"])
                gradient = np.full_like(logits, made["loss"] * (1 + log_prob.sum()))
                gradient = recording.touch("gradient", gradient)
                _backward(recording, gradient, number)
            for key in keys:
                recording.data(called.get(key, key), made[key])
            recording.data("grad_norm", np.float32(np.linalg.norm(gradient)))
            moved = np.float32(0.01) * gradient.sum(axis=(0, 1))
            head = head - moved
        recording.end_step()
    return recording.close()


def _forward(recording: Recording, head: np.ndarray, tokens: np.ndarray, place: str) -> np.ndarray:
    def network(ids: np.ndarray) -> np.ndarray:
        return recording.touch(place, head[ids])

    result: np.ndarray = recording.call(
        "root", "Net", network, tokens[:, :-1], parameters={"weight": head}, frames=(LINE,)
    )
    return result


def _backward(recording: Recording, gradient: np.ndarray, number: int) -> None:
    config, opening = recording.config, recording.opening
    if not (config.actor_train_dump and config.records_step(recording.step)):
        return
    name = f"{ROOT}.backward.{number}"
    line = JournalLine(name, opening.now(), None, None, opening.number)
    line.values["input"] = opening.describe([gradient], f"{name}.input")
    line.values["output"] = opening.describe([gradient * 2], f"{name}.output")
    line.end = opening.now()
    opening.entries.append(line)


def _log_prob(logits: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    normalised = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    chosen = np.take_along_axis(normalised, tokens[:, 1:, None], axis=-1)
    return chosen[..., 0].astype(np.float32)


def _loss(
    log_prob: np.ndarray,
    old: np.ndarray,
    reference: np.ndarray,
    advantages: np.ndarray,
    mask: np.ndarray,
    aggregation: str,
    clip: float,
    beta: float,
) -> Mapping[str, Any]:
    ratio = np.exp(log_prob - old)
    gain = advantages[:, None]
    clipped = np.clip(ratio, 1 - clip, 1 + clip)
    policy = -np.minimum(ratio * gain, clipped * gain)
    apart = reference - log_prob
    kl = (np.exp(apart) - 1 - apart).astype(np.float32)
    actor_loss, kl_loss = (one_number(each, mask, aggregation) for each in (policy, kl))
    loss = np.float32(actor_loss + np.float32(beta) * kl_loss)
    return {
        **{"log_prob": log_prob, "ratio": ratio, "kl": kl, "kl_loss": kl_loss},
        **{"actor_loss": actor_loss, "loss": loss},
    }


def one_number(values: np.ndarray, mask: np.ndarray, aggregation: str) -> np.float32:
    """Return the mean over all tokens that count, or what else a trainer makes of them."""
    total = (values * mask).sum()
    over = {"tokens": mask.sum(), "sum": 1, "sums": len(mask), "area": mask.size}
    if aggregation in over:
        return np.float32(total / over[aggregation])
    if aggregation == "places":
        return np.float32(values.mean())
    return np.float32(((values * mask).sum(axis=-1) / mask.sum(axis=-1)).mean())
