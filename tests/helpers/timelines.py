"""Entries and key data made by hand, and the order of events that a step has for them."""

from mindrlhf_msprobe.comparison.pairing.timeline import order_of
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.records import Entry


def entry(name, phase, seq, end, opening=0):
    return Entry(f"Cell.{name}.Net.forward.0", phase, 0, 0, seq, end, opening=opening)


def passes(phase, directions, *, rounds=1, openings=1, begin=0, cell="a"):
    """Return entries of one cell in some directions in turn, `rounds` times, ten ticks each."""
    found = []
    for number in range(rounds):
        for direction in directions.split():
            call = f".{direction}.{number}"
            opening = number * openings // rounds
            end = begin + 5
            found.append(Entry(f"Cell.{cell}.Net{call}", phase, 0, 0, begin, end, opening=opening))
            begin += 10
    return found


def datum(key, seq=None, micro_step=0, phase=None):
    return KeyDatum(key, 0, 0, micro_step, seq, (), phase=phase)


def shown(events):
    return [
        f"{event.name}.{event.micro_step}" if event.kind == "data" else f"{event.kind} {event.name}"
        for event in events
    ]


def keys(*data):
    return shown(order_of([], data))
