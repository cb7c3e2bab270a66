"""The metrics of rollout against training, step by step: which are wanted, and why some are not."""

from __future__ import annotations

from collections.abc import Iterable

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.storage.reading.series import Gathered, Missing
from mindrlhf_msprobe.trends import formulas
from mindrlhf_msprobe.trends.derived import ROLLOUT_LOG_PROB, KeyPlace, Unavailable
from mindrlhf_msprobe.trends.rollout_correction import METRICS, NON_FINITE, OUTSIDE
from mindrlhf_msprobe.trends.rollout_rows import KEYS_READ, rollout_gaps

#: All metrics together, as one derived quantity.
ROLLOUT_CORR = "rollout_corr"


class RolloutMetrics:
    """Gathers the metrics that are wanted.

    Args:
        names: derived quantities that are asked for; `ROLLOUT_CORR`: every metric.
    """

    def __init__(self, names: Iterable[str]) -> None:
        asked = set(names)
        self._whole = ROLLOUT_CORR in asked
        self._names = [name for name in METRICS if self._whole or name in asked]
        self._why: Message | None = None
        self._undefined: dict[str, Message] = {}
        self._found: set[str] = set()

    @property
    def wanted(self) -> bool:
        """Whether any metric is."""
        return bool(self._names)

    def keys(self, there: Iterable[str]) -> set[str]:
        """Return which of the keys of a place are needed."""
        held = KEYS_READ.intersection(there) if self._names else frozenset[str]()
        return set(held) if held.intersection(ROLLOUT_LOG_PROB) else set()

    def read(self, place: KeyPlace, at: tuple[int, int], found: Gathered) -> None:
        """Take the metrics of a (step, rank)."""
        if not self._names:
            return
        try:
            gaps = rollout_gaps(place)
        except Unavailable as error:
            self._why = self._why or error.said
            return
        clip_range = place.settings.clip_range
        low, high = clip_range or formulas.CLIP_RANGE
        said = "trend.usual_clip_range" if clip_range is None else "trend.clip_range"
        of_range = message(said, low=low, high=high)
        for rows, gap, notes in gaps:
            for name in self._names:
                if name in gap.metrics:
                    more = (of_range, *notes) if name == OUTSIDE else notes
                    where = (*at, rows.datum.micro_step)
                    found.add("derived", name, gap.metrics[name], where, notes=more)
                    self._found.add(name)
                else:
                    self._undefined.setdefault(name, gap.undefined[name])

    def missing(self, not_recorded: Message | None) -> list[Missing]:
        """Return what was wanted and found nowhere, with the reason.

        Args:
            not_recorded: why the run holds no log-probabilities of the rollout, as it says itself.
        """
        lacking = [name for name in self._names if name not in self._found]
        if not self._found and not self._undefined:
            why = not_recorded or self._why or message("trend.no_key", names=[ROLLOUT_LOG_PROB[0]])
            return [Missing(name, why) for name in ([ROLLOUT_CORR] if self._whole else lacking)]
        whys = {name: self._undefined[name] for name in lacking if name in self._undefined}
        if self._whole and self._found == {NON_FINITE}:  # no token that counts is finite
            return [Missing(ROLLOUT_CORR, why) for why in dict.fromkeys(whys.values())]
        return [Missing(name, why) for name, why in whys.items()]
