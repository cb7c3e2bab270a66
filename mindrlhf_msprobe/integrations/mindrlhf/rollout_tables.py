"""The log-probabilities of a rollout as key data, whatever engine gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mindrlhf_msprobe.common.message import Message
from mindrlhf_msprobe.integrations.session import Session
from mindrlhf_msprobe.probe import Probe

LOG_PROB = "rollout_log_prob"
#: What they are of: MindRLHF gathers prompts and responses over ranks, and these are one's own.
PROMPTS, TOKENS = "rollout_prompts", "rollout_tokens"
KEYS = (LOG_PROB, PROMPTS, TOKENS)
_BEHIND = -1  # no token


def save_rollout(
    probe: Probe,
    log_probs: Sequence[Sequence[float]],
    tokens: Sequence[Sequence[int]],
    prompts: Sequence[Sequence[int]],
    widths: tuple[int, int] = (0, 0),
) -> None:
    """Save what one call generated: a row a sample, filled up behind its end.

    Args:
        log_probs: of each token of a response, in nats; saved as float32 [samples, tokens], 0
            behind the end.
        tokens: their ids; int32 [samples, tokens], −1 behind the end.
        prompts: the ids before them; int32 [samples, tokens], −1 behind the end.
        widths: how many columns responses and prompts have at least.
    """
    probe.save_data(
        {
            LOG_PROB: _table(log_probs, widths[0], "float32", 0),
            TOKENS: _table(tokens, widths[0], "int32", _BEHIND),
            PROMPTS: _table(prompts, widths[1], "int32", _BEHIND),
        }
    )


def as_widths(response: Any, prompt: Any) -> tuple[int, int]:
    """Return the widths of both tables as a configuration has them; 0 for what is no number."""
    known = [width if isinstance(width, int) else 0 for width in (response, prompt)]
    return known[0], known[1]


def leave_out_rollout(session: Session, why: Message) -> None:
    """Say that the log-probabilities of what is generated cannot be recorded, and why."""
    session.probe.leave_out_data(LOG_PROB, why)
    for key in KEYS:
        session.note_lost(key, why)


def _table(rows: Sequence[Sequence[Any]], width: int, dtype: str, filling: int) -> Any:
    """Return rows as an array [rows, width or more], filled up behind their ends."""
    import numpy as np  # what is off imports nothing

    table = np.full((len(rows), max(width, *map(len, rows))), filling, dtype)
    for to_fill, row in zip(table, rows):
        to_fill[: len(row)] = row
    return table
