"""How many of the tokens that there are were aligned: what a comparison says something of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.comparison.tokens.beginnings import prefix_names
from mindrlhf_msprobe.comparison.tokens.matching import Matched
from mindrlhf_msprobe.comparison.tokens.saved_samples.windows import SavedSample
from mindrlhf_msprobe.comparison.tokens.sequences import PhaseTokens


@dataclass(frozen=True)
class Coverage:
    """Counts of tokens.

    Attributes:
        rows, tokens: rows of the rollout that were aligned, of all that are tokens.
        saved_aligned, saved: tokens of saved prompts and responses that were aligned, of all whose
            rows both phases should have; 0 of 0 where nothing was saved.
    """

    rows: int
    tokens: int
    saved_aligned: int = 0
    saved: int = 0

    @property
    def share(self) -> float:
        """The smaller share that was aligned, 0 to 1; of no tokens 0."""
        shares = [self.rows / self.tokens if self.tokens else 0.0]
        if self.saved:
            shares.append(self.saved_aligned / self.saved)
        return min(shares)


def coverage(
    rollout: PhaseTokens,
    training: PhaseTokens,
    matched: Matched,
    samples: Sequence[SavedSample] = (),
    window: tuple[int, float] = (0, np.inf),
) -> Coverage:
    """Count the tokens of a rollout that have a row in the training.

    The last token of a response is sampled, and need not be given to a network. Samples whose
    prompts neither phase was given are another rank's, and not counted.

    Args:
        matched: of both phases.
        samples: prompts and responses of the step.
        window: the first and the last token that were asked for: 0 is the call with the prompts, n
            the one that is given the response's n-th token.
    """
    rows, count = matched.rows, rollout.count
    there = [prefix_names(tokens) for side in (rollout, training) for tokens in side.sequences]
    given = np.unique(np.concatenate([np.zeros(0, np.uint64), *there]))
    aligned = np.unique(_aligned(rollout, matched))
    found = wanted = 0
    for sample in samples:
        size = len(sample.prompt)
        names = prefix_names(sample.tokens)
        if not size or not np.isin(names[size - 1], given):
            continue
        generated = np.maximum(np.arange(len(names)) - size + 1, 0)
        asked = (window[0] <= generated) & (generated <= window[1])
        asked[-1] &= len(names) == size
        found += int(np.isin(names[asked], aligned).sum())
        wanted += int(asked.sum())
    return Coverage(rows, count, found, wanted)


def _aligned(rollout: PhaseTokens, matched: Matched) -> np.ndarray:
    """Return the names of the tokens that were aligned, uint64."""
    names = [prefix_names(tokens) for tokens in rollout.sequences]
    found = [np.zeros(0, np.uint64)]
    for call, partner in zip(rollout.calls, matched.partners):
        at = np.flatnonzero(partner.row >= 0)
        for sequence in np.unique(call.sequence[at]).tolist():
            found.append(names[sequence][call.position[at[call.sequence[at] == sequence]]])
    return np.concatenate(found)
