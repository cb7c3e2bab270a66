"""Entries and key data made by hand, and the order of events that a step has for them."""

from mindrlhf_msprobe.comparison.pairing.timeline import order_of
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.records import Entry


def entry(name, phase, seq, end, opening=0):
    return Entry(f"Cell.{name}.Net.forward.0", phase, 0, 0, seq, end, opening=opening)


def datum(key, seq=None, micro_step=0, phase=None):
    return KeyDatum(key, 0, 0, micro_step, seq, (), phase=phase)


def shown(events):
    return [
        f"{event.name}.{event.micro_step}" if event.kind == "data" else f"{event.kind} {event.name}"
        for event in events
    ]


def keys(*data):
    return shown(order_of([], data))
