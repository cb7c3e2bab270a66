"""Which findings a comparison keeps: all of few records; of many, those that do not agree."""

from __future__ import annotations

from mindrlhf_msprobe.comparison.steps.step_of_rank import JudgedPlace

#: Records, of which more are not listed one by one where they agree.
FOLD_ABOVE = 50_000


class Folding:
    """Decides what is let go of while the places of a comparison come in.

    Attributes:
        many: whether there are more records than are held as objects.

    Args:
        above: how many records are listed at most, and held as objects; None: all.
        places: how many there will be.
        all_rows: list more of them, too.
    """

    def __init__(self, above: int | None, places: int, *, all_rows: bool = False) -> None:
        self._above = above
        self._all_rows = all_rows
        self._expected = places
        self._finished: list[JudgedPlace] = []
        self._records = self._come = 0
        self._first: JudgedPlace | None = None
        self.many = False

    @property
    def is_likely(self) -> bool:
        """Whether there seem to be too many records; what agrees may be counted wholesale then."""
        if self._above is None or self._all_rows or not self._come:
            return False
        return self.many or self._records * self._expected > self._above * self._come

    def came(self, place: JudgedPlace) -> None:
        """Take note of a place, of which some pairs may still be compared."""
        self._records += place.records
        self._come += 1

    def finished(self, place: JudgedPlace) -> None:
        """Take in a place that is finished, and let go of what agrees if there is too much."""
        if self._above is None:
            return
        self._finished.append(place)
        self.many = self.many or self._records > self._above
        if self.many:
            for each in self._finished:
                self._let_go(each)
            self._finished.clear()

    def _let_go(self, place: JudgedPlace) -> None:
        """Fold a place, but the one of the first divergence so far: it has to be explained."""
        if self._all_rows:
            place.pack()
            return
        place.folded = True
        order, first = place.order, self._first
        later = order is None or (first is not None and (first.order or ()) <= order)
        self._first, other = (first, place) if later else (place, first)
        if other is not None:
            other.fold()
            other.pack()
