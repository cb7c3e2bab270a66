"""One step of one rank as events in causal order.

An entry makes two events: it begins (its inputs and parameters are known) and it ends (its output
is known); what ran inside it lies between. Key data stand where they belong in the step, whenever
they were saved.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from mindrlhf_msprobe import phases
from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.comparison.pairing.names import OUTER
from mindrlhf_msprobe.storage.operators import is_operator
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.records import Entry

BEGIN = "begin"
END = "end"
DATA = "data"

#: What events are sorted by; and the part of it that places key data: (time, side, phase).
_Order = tuple[float, ...]
_Place = tuple[float, float, float]

_REWARDS = ("reward", "rewards")  # made of what the networks gave, or given to the critic
_STEP_START = -math.inf
_STEP_END = math.inf


@dataclass(frozen=True)
class EventKey:
    """What identifies an event in both runs.

    Attributes:
        kind: begin or end of an entry, or data.
        phase: of the entry; for key data the phase whose result they are, or None.
        name: the entry's id (its name in A, where A has it), or the key.
        micro_step: of key data, else 0.
    """

    kind: str
    phase: str | None
    name: str
    micro_step: int = 0


def order_of(
    entries: Sequence[Entry],
    key_data: Sequence[KeyDatum],
    ids: Mapping[tuple[str, str], str] | None = None,
    earlier: frozenset[str] = frozenset(),
) -> list[EventKey]:
    """Return the events of one step of one rank of one run, in causal order.

    Args:
        ids: (phase, entry name) → the id by which the events know the entry; None: its name.
        earlier: the keys of `made_before_updates`.
    """
    placed: list[tuple[_Order, EventKey]] = []
    for entry in entries:
        name = entry.name if ids is None else ids[entry.phase, entry.name]
        placed.append(((entry.seq, 0.0), EventKey(BEGIN, entry.phase, name)))
        if entry.end is not None:
            placed.append(((entry.end, 0.0), EventKey(END, entry.phase, name)))
    placed += placed_key_data(Spans(entries), key_data, earlier)
    placed.sort(key=_by_order)
    return [event for _, event in placed]


def placed_key_data(
    spans: Spans, key_data: Sequence[KeyDatum], earlier: frozenset[str] = frozenset()
) -> list[tuple[_Order, EventKey]]:
    """Return the events of key data in causal order, each with what it is sorted by.

    That begins with a time and a side: below 0 it comes before what entries do at that time, else
    behind it.

    Args:
        earlier: the keys of `made_before_updates`.
    """
    return sorted(_place_key_data(spans, key_data, earlier), key=_by_order)


def _by_order(placed: tuple[_Order, EventKey]) -> tuple[_Order, str]:
    return placed[0], placed[1].name


def made_before_updates(*runs: Sequence[KeyDatum]) -> frozenset[str]:
    """Return which keys that may be of an update's loss were made before the updates of a step.

    They were first saved before an update had begun, by what the probe knows of phases. In every
    run that has them.
    """
    found: dict[str, bool] = {}
    for key_data in runs:
        updates = [d.seq for d in key_data if d.phase in phases.UPDATE_PHASES and d.seq is not None]
        begun = min(updates, default=-1)  # -1: nothing tells when
        for key in phases.OR_EARLIER:
            seqs = [d.seq for d in key_data if d.key == key]
            if seqs:
                first = min(math.inf if seq is None else seq for seq in seqs)
                found[key] = found.get(key, True) and first < begun
    return frozenset(key for key, before in found.items() if before)


def _home(key: str, earlier: frozenset[str]) -> phases.KeyDataHome | None:
    return phases.KeyDataHome(None) if key in earlier else phases.key_data_home(key)


def _place_key_data(
    spans: Spans, key_data: Sequence[KeyDatum], earlier: frozenset[str]
) -> Iterator[tuple[_Order, EventKey]]:
    saves: dict[str, list[KeyDatum]] = {}
    for datum in key_data:
        saves.setdefault(datum.key, []).append(datum)
    rounds = _saved_in_rounds(key_data)
    placed: list[tuple[KeyDatum, _Order]] = []
    for key, data in saves.items():
        home = _home(key, earlier)
        if home is None:
            continue
        for index, datum in enumerate(data):
            time, side, order = spans.place(datum, home, index, len(data))
            if spans.empty and _fed_the_critic(datum, saves):
                order = min(order, phases.phase_order("critic_compute_values") - 0.5)
            if time == _STEP_START and rounds:
                side += datum.micro_step
            placed.append((datum, (time, side, order)))
    known: list[tuple[int, _Order]] = []  # when each known key was saved, and where it stands
    for datum, place in _with_updates_in_rounds(placed, earlier):
        home = _home(datum.key, earlier)
        assert home is not None
        if datum.seq is not None:
            known.append((datum.seq, place))
        yield place, EventKey(DATA, home.phase, datum.key, datum.micro_step)
    for key, data in saves.items():
        for datum in data if phases.key_data_home(key) is None else ():  # where it was saved
            if datum.seq is None:
                place = (_STEP_END, 1.0, 0.0, 0.0, float(datum.micro_step))
            elif spans.empty:  # without any cell it follows the known keys saved before it
                before = [at for seq, at in known if seq < datum.seq]
                place = (*max(before, default=(_STEP_START, -1.0)), datum.seq)
            else:
                place = (datum.seq, 1.0, 0.0)
            yield place, EventKey(DATA, None, key, datum.micro_step)


def _with_updates_in_rounds(
    placed: Sequence[tuple[KeyDatum, _Order]], earlier: frozenset[str]
) -> Iterator[tuple[KeyDatum, _Order]]:
    """Yield key data and their whole places: what several updates in a row gave, update by update.

    Of saves between which no cell tells the time, what the first update gave stands before what
    the second one did: its losses made the weights that the second one's log_prob comes of.
    """
    together: dict[_Order, list[KeyDatum]] = {}
    for datum, place in placed:
        if _is_of_an_update(datum, earlier):
            together.setdefault(place[:2], []).append(datum)
    rounds = {where: _rounds(data) for where, data in together.items()}
    by_phase: dict[_Order, dict[tuple[str, int], int] | None] = {}
    for datum, (time, side, order) in placed:
        last = float(phases.key_order(datum.key)), float(datum.micro_step)
        if datum.key in earlier:
            yield datum, _before_what_was_saved_later(datum, (time, side, order), placed)
            continue
        if not _is_of_an_update(datum, earlier):
            yield datum, (time, side, order, *last)
            continue
        save = datum.key, datum.micro_step
        joint = rounds[time, side]
        if joint is not None:
            first = float(phases.phase_order(phases.UPDATE_PHASES[0]))
            yield datum, (time, side, first, float(joint[save]), order, *last)
            continue
        where = time, side, order
        if where not in by_phase:
            by_phase[where] = _rounds([d for d, at in placed if at == where])
        own = by_phase[where]
        yield datum, (*where, 0.0 if own is None else float(own[save]), order, *last)


def _before_what_was_saved_later(
    datum: KeyDatum, place: _Order, placed: Sequence[tuple[KeyDatum, _Order]]
) -> _Order:
    """Return the whole place of a key made before an update: before what was made of it."""
    places = [(*place, float(phases.key_order(datum.key)))]
    for other, at in placed:
        home = phases.key_data_home(other.key)
        if home is None or not home.before_update or other.micro_step > datum.micro_step:
            continue
        if (other.seq or 0) > (datum.seq or 0):
            places.append((*at, phases.key_order(other.key) - 0.5))
    return (*min(places), float(datum.micro_step), float(datum.seq or 0))


def _is_of_an_update(datum: KeyDatum, earlier: frozenset[str]) -> bool:
    home = _home(datum.key, earlier)
    return home is not None and home.phase in phases.UPDATE_PHASES


def _rounds(data: Sequence[KeyDatum]) -> dict[tuple[str, int], int] | None:
    """Return the round of each save, None if the saves were not made in rounds.

    The rounds are those of the keys that were saved most often; any other save belongs to the round
    in which it was made.
    """
    counts = Counter(datum.key for datum in data)
    most = max(counts.values(), default=0)
    if most < 2:
        return None
    leading = [datum for datum in data if counts[datum.key] == most]
    if all(datum.seq is None for datum in data):
        same = len(leading) == len(data)
        return {(d.key, d.micro_step): d.micro_step for d in data} if same else None
    if any(datum.seq is None for datum in data) or not _saved_in_rounds(leading):
        return None
    numbers = sorted({datum.micro_step for datum in leading})
    begins = [min(d.seq or 0 for d in leading if d.micro_step == number) for number in numbers]
    found = {}
    for datum in data:  # of other keys, the round that had begun last; before any, the first
        begun = numbers[max(bisect_right(begins, datum.seq or 0) - 1, 0)]
        own = datum.micro_step if counts[datum.key] == most else begun
        found[datum.key, datum.micro_step] = own
    return found


def _fed_the_critic(datum: KeyDatum, saves: Mapping[str, Sequence[KeyDatum]]) -> bool:
    """Return whether rewards were saved before the values, and as they arose: after the prompts."""
    if datum.key not in _REWARDS or datum.seq is None:
        return False
    round_ = {
        key: other.seq
        for key, data in saves.items()
        for other in data
        if other.micro_step == datum.micro_step and other.seq is not None
    }
    if not all(seq < datum.seq for key, seq in round_.items() if key in phases.INPUT_KEYS):
        return False
    return datum.seq < round_.get("values", -1)


def _saved_in_rounds(key_data: Sequence[KeyDatum]) -> bool:
    """Return whether all first saves of the keys came before all second ones, and so on."""
    saved: dict[int, list[int]] = {}
    for datum in key_data:
        if datum.seq is None:
            return False
        saved.setdefault(datum.micro_step, []).append(datum.seq)
    rounds = [saved[micro_step] for micro_step in sorted(saved)]
    return all(max(a) < min(b) for a, b in itertools.pairwise(rounds))


@dataclass
class _Pass:
    """A forward pass of an update.

    Attributes:
        begin: when it began.
        inner: where a cell around the policy computes the loss: when all cells inside it had ended.
        gradients: when gradients of it first were computed.
    """

    begin: int
    inner: int | None = None
    gradients: int | None = None


class Spans:
    """When each opening of each phase began and ended.

    A dump that belongs to no phase is a whole training pass: it stands for the update.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._spans: dict[str, dict[int, list[int]]] = {}
        self._entries: dict[str, dict[int, list[Entry]]] = {}  # of updates
        self._passes_of: dict[str, list[_Pass]] = {}
        for entry in entries:
            phase = phases.UPDATE_PHASES[0] if entry.phase == phases.UNNAMED_PHASE else entry.phase
            if phase in phases.UPDATE_PHASES:
                of = self._entries.setdefault(phase, {})
                of.setdefault(entry.opening, []).append(entry)
            openings = self._spans.setdefault(phase, {})
            span = openings.setdefault(entry.opening, [entry.seq, entry.time])
            span[0], span[1] = min(span[0], entry.seq), max(span[1], entry.time)

    @property
    def empty(self) -> bool:
        """Whether no cell was recorded."""
        return not self._spans

    def place(self, datum: KeyDatum, home: phases.KeyDataHome, index: int, saves: int) -> _Place:
        """Return where the `index`-th of `saves` saves of a key stands: (time, side, phase).

        Where a phase was opened as often as the key was saved, the n-th save belongs to the n-th
        opening. A phase's result never stands later than where it was saved, and what its forward
        pass made stands before its gradients.
        """
        if home.before_update:
            place = self._before_update(index, saves)
            begins = (span[0] for openings in self._spans.values() for span in openings.values())
            if datum.seq is not None and any(datum.seq < begin < place[0] for begin in begins):
                return float(datum.seq), 1.0, 0.0
            return place
        assert home.phase is not None
        if home.before_phase:  # however late it was saved; saved once, before all openings
            spans, order = self._of(home.phase), phases.phase_order(home.phase) - 0.5
            if not spans:
                return self._beside(order, index, saves)
            rounds = index * len(spans) // saves if saves % len(spans) == 0 else 0
            return float(spans[rounds][0]), -1.0, order
        phase, time = self._made_in(datum, home, index, saves)
        if time is None:
            return self._beside(phases.phase_order(home.phase), index, saves)
        if not home.forward:
            return time, 1.0, 0.0
        inside = time == datum.seq
        own = self._pass_before(phase, time, index, saves, inside=inside)
        together = phases.UPDATE_PHASES if home.after_updates else (phase,)
        made = [self._pass_before(other, time, index, saves, inside=inside) for other in together]
        behind = [p.gradients for p in made if p is not None and p.gradients is not None]
        begun = time if own is None else own.begin
        gradients = min((at for at in behind if begun < at < time), default=None)
        if own is not None and own.inner is not None and own.inner < time:
            return float(own.inner), 1.0, 0.0
        return (
            (time, 1.0, 0.0) if gradients is None else (gradients, -1.0, phases.phase_order(phase))
        )

    def _made_in(
        self, datum: KeyDatum, home: phases.KeyDataHome, index: int, saves: int
    ) -> tuple[str, float | None]:
        """Return the phase that made a save, and when it was there; None without such a phase.

        What may come from any update comes from the last that had ended when it was saved.
        """
        assert home.phase is not None
        phase, time = home.phase, self._result_of(home.phase, datum, index, saves)
        known = self._beside(phases.phase_order(phase), index, saves)[0] if time is None else time
        for update in phases.UPDATE_PHASES if home.after_updates else ():
            spans = self._of(update)
            ends = [end for _, end in spans]
            if len(spans) != saves and datum.seq is not None:
                ends = [end for end in ends if end < datum.seq]
            end = ends[index if len(spans) == saves else -1] if ends else known
            if end > known and (datum.seq is None or end < datum.seq):
                phase, time, known = update, float(end), end
        return phase, time

    def _result_of(self, phase: str, datum: KeyDatum, index: int, saves: int) -> float | None:
        """Return when the result of a phase was there: at its end, or where it was saved before."""
        spans = self._of(phase)
        if not spans:
            return None
        time = float(spans[index if len(spans) == saves else -1][1])
        if datum.seq is not None:
            if len(spans) != saves:
                begun = [end for begin, end in spans if begin < datum.seq]
                time = float(begun[-1] if begun else spans[0][1])
            if datum.key not in phases.INPUT_KEYS:
                time = min(time, datum.seq)
        return time

    def _pass_before(
        self, phase: str, time: float, index: int, saves: int, *, inside: bool
    ) -> _Pass | None:
        """Return the forward pass that made what was there at a time; None without any.

        Where there were as many as saves, and these were made behind them, the n-th save belongs
        to the n-th.
        """
        passes = self._passes(phase)
        if len(passes) == saves and not inside:
            return passes[index]
        return next((one for one in reversed(passes) if one.begin < time), None)

    def _passes(self, phase: str) -> list[_Pass]:
        """Return the forward passes of an update, in the order of time.

        A further pass begins where a cell runs forward again behind gradients. Operators tell
        passes apart only where no cell was recorded, and gradients follow: an optimizer calls them
        as well.
        """
        if phase in self._passes_of:
            return self._passes_of[phase]
        every: list[_Pass] = []
        for opening in self._entries.get(phase, {}).values():
            entries = sorted(opening, key=lambda entry: entry.seq)
            cells = [entry for entry in entries if not is_operator(entry.name)]
            found = [_Pass(entries[0].seq)]
            ran: set[str] = set()
            for entry in cells or entries:
                if entry.direction != "forward":
                    if found[-1].gradients is None:
                        found[-1].gradients = entry.seq
                    continue
                if found[-1].gradients is not None and entry.cell in ran:
                    found.append(_Pass(entry.seq))
                    ran.clear()
                ran.add(entry.cell)
                if OUTER in ran and entry.cell != OUTER and found[-1].gradients is None:
                    found[-1].inner = max(found[-1].inner or 0, entry.time)
            if not cells and found[-1].gradients is None and len(found) > 1:
                found.pop()
            every += found
        self._passes_of[phase] = sorted(every, key=lambda one: one.begin)
        return self._passes_of[phase]

    def _before_update(self, index: int, saves: int) -> _Place:
        order = phases.phase_order(phases.UPDATE_PHASES[0]) - 0.5
        updates = [self._of(phase) for phase in phases.UPDATE_PHASES]
        if not updates[0]:  # its losses stand beside its neighbours, so these do too
            return self._beside(order, index, saves)
        begins = sorted(begin for spans in updates for begin, _ in spans)
        if saves > 1:
            for phase in self._earlier(order):
                spans = self._of(phase)
                if len(spans) == saves:
                    end = spans[index][1]
                    later = next((begin for begin in begins if begin > end), None)
                    return (end, 2.0, order) if later is None else (later, -1.0, order)
            for spans in updates:
                if len(spans) == saves:
                    return spans[index][0], -1.0, order
        return begins[0], -1.0, order

    def _beside(self, order: float, index: int, saves: int) -> _Place:
        """Place what a phase that was not recorded gave: between its recorded neighbours."""
        earlier = self._earlier(order)
        for phase in earlier:
            spans = self._of(phase)
            if saves == 1 or len(spans) == saves:
                return spans[index if len(spans) == saves else -1][1], 2.0, order
        later = [
            p.name for p in phases.PHASES if phases.phase_order(p.name) > order and self._of(p.name)
        ]
        for phase in later:
            spans = self._of(phase)
            if saves > 1 and len(spans) == saves:
                return spans[index][0], -1.0, order
        if earlier:
            return self._of(earlier[0])[-1][1], 2.0, order
        return _STEP_START, 2.0, order

    def _earlier(self, order: float) -> list[str]:
        """Return the recorded phases before a place in the step, the nearest first."""
        names = [phase.name for phase in reversed(phases.PHASES)]
        return [name for name in names if phases.phase_order(name) < order and self._of(name)]

    def _of(self, phase: str) -> list[list[int]]:
        return sorted(self._spans.get(phase, {}).values())


def merge(a: Sequence[EventKey], b: Sequence[EventKey]) -> list[EventKey]:
    """Return the events of both runs: A's order; what only B has follows what precedes it there."""
    position = {event: index for index, event in enumerate(a)}
    order = [((index, -1), event) for index, event in enumerate(a)]
    last = -1
    for index, event in enumerate(b):
        if event in position:
            last = position[event]
        else:
            order.append(((last, index), event))
    return [event for _, event in sorted(order, key=lambda item: item[0])]
