"""The course of the training: quantities over the steps, of one run or both."""

from __future__ import annotations

from typing import Any

from mindrlhf_msprobe.errors import MsprobeError
from mindrlhf_msprobe.report.page.words import Words, all_said, known, said, spoken
from mindrlhf_msprobe.storage.arrays.atomic import number_to_json
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.reading.series import Series
from mindrlhf_msprobe.trends.reading import Choice, read_trends

_MOST_SERIES = 400  # of all runs; each has its share, so that both have the same
_MOST_POINTS = 2000  # of a series; of longer ones every n-th is shown
#: What people look at first, in this order; a name that holds one of these words belongs to it.
_GROUPS = (
    ("loss", ("loss",)),
    ("rollout", ("rollout_corr/", "training/rollout")),
    ("kl", ("kl",)),
    ("reward", ("reward", "score")),
    ("advantages", ("advantage", "return", "value")),
    ("log_probs", ("log_prob", "logprob", "entropy")),
    ("ratio", ("ratio", "clip")),
    ("lengths", ("length",)),
    ("gradients", ("grad",)),
    ("weights", ("update_to_weight", "adam", "weight")),
)
_OTHER = "other"
#: Of these the spread is shown, too: the smallest and the largest.
_SPREAD = ("rewards", "reward", "advantages")


class Course:
    """The curves of a page of so many runs.

    Attributes:
        left_out: how many curves are not shown, as there are too many.
        problems: why a run has none.
    """

    def __init__(self, runs: int) -> None:
        self.left_out = 0
        self.problems: list[Words] = []
        self._groups: dict[str, list[dict[str, Any]]] = {}
        self._most = _MOST_SERIES // max(1, runs)

    def add(self, side: str, run: Run) -> None:
        """Take the quantities of a run."""
        try:
            series = read_trends(run, Choice(spread=_SPREAD)).series
        except MsprobeError as error:
            self.problems.append(said(error.said))
            return
        there = [one for one in series if len(one)]
        self.left_out += max(0, len(there) - self._most)
        for one in there[: self._most]:
            self._take(side, one)

    def _take(self, side: str, series: Series) -> None:
        stride = -(-len(series) // _MOST_POINTS)
        values = [*map(number_to_json, series.values[::stride].tolist())]
        statistic = "" if series.statistic == "mean" else series.statistic
        self._groups.setdefault(_group_of(series.name), []).append(
            {
                **{"side": side, "rank": series.rank, "label": series.name},
                **known(statistic=statistic or None, phase=series.phase),
                "steps": series.steps[::stride].tolist(),
                "micro_steps": series.micro_steps[::stride].tolist(),
                "values": values,
                **known(every=stride if stride > 1 else None),
                **known(note=all_said(series.notes) or None),
            }
        )

    def content(self) -> dict[str, Any]:
        """Return the block `course`."""
        order = [name for name, _ in _GROUPS] + [_OTHER]
        return {
            "groups": [
                {
                    "id": name,
                    "title": spoken(f"report.group_{name}"),
                    "series": self._groups[name],
                }
                for name in order
                if name in self._groups
            ]
        }


def _group_of(name: str) -> str:
    lowered = name.lower().partition("[")[0]  # without the layer, which may be called anything
    lowered = lowered.removeprefix("loss_inputs.")  # what the loss is given is no loss
    return next(
        (group for group, words in _GROUPS if any(word in lowered for word in words)), _OTHER
    )
