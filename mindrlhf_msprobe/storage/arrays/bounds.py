"""How much of a file, or of what it says, is read at most.

Dumps come from others: a file may say that it is as large as no memory, or hold a line without
end. These are bounds that no real run comes near; what lies beyond one is unreadable, and said to
be. They stand in docs/en/files.md.
"""

from __future__ import annotations

from typing import Any

#: Bytes of run.json, run.rank<N>.json and configurations.json.
METADATA = 64 << 20
#: Bytes of a JSON file that holds data: dump.json, construct.json, stack.json, a key's JSON.
DATA = 1 << 30
#: Bytes of a journal, and of one line of it.
JOURNAL = 4 << 30
LINE = 64 << 20
#: Bytes of a line of a part: what one step of a comparison's shard has found.
PART_LINE = 1 << 30
#: Steps of one rank whose times are read, and bytes of the line of one.
TIMELINE_STEPS = 1_000_000
TIMELINE_LINE = 4 << 20
#: Bytes of what a second computation thinks of one rank's calls.
OPINIONS = 64 << 30
#: Bytes of the elements of one tensor: more than any device holds.
TENSOR = 64 << 30
#: Sizes that a shape has, and how large each is.
DIMENSIONS = 64
SIZE = (1 << 63) - 1
#: Values that one entry, and one save of key data, holds, and how deep they are nested.
VALUES = 100_000
KEY_VALUES = 100_000
DEPTH = 100
#: Shares of a gradient's elements.
SHARES = 1000
#: Nulls that follow each other in a list or an object, and are a value each.
NULLS = 100
#: Bytes of a tokenizer.json.
TOKENIZER = 1 << 30
#: Parameters of a checkpoint, and bytes of the header or the index of safetensors.
PARAMETERS = 1_000_000
HEADER = 100_000_000
#: Characters of an entry's name.
NAME = 4096
#: Frames of one call stack.
FRAMES = 256
#: A place in time, a token, an opening, the value of a whole number that is kept as one.
PLACE = 1 << 62
NUMBER = 1 << 1023


def is_place(value: object) -> bool:
    """Return whether a JSON value can be a place in time, or a number of things."""
    return type(value) is int and -PLACE < value < PLACE


def items(value: Any) -> list[Any]:
    """Return a list of a line of JSON.

    Raises:
        ValueError: it is none.
    """
    if type(value) is not list:
        raise ValueError(type(value))
    return value


def text(value: Any) -> str:
    """Return a name in a line of JSON.

    Raises:
        ValueError: it is no text, too long, or has no UTF-8 form.
    """
    if type(value) is not str or len(value) > NAME:
        raise ValueError(type(value))
    value.encode()
    return value


def count(value: Any) -> int:
    """Return a step, a rank or a number of things in a line of JSON.

    Raises:
        ValueError: it is none.
    """
    if type(value) is not int or not 0 <= value < PLACE:
        raise ValueError(type(value))
    return value


def number(value: Any) -> float:
    """Return a finite number of a line of JSON.

    Raises:
        ValueError: it is none, or larger than a float can be.
    """
    if type(value) not in (int, float) or not -NUMBER < value < NUMBER:
        raise ValueError(type(value))
    return float(value)


def in_bytes(size: int) -> str:
    """Return a bound in the unit in which it is a whole number."""
    unit = next(shift for shift in (30, 20, 10, 0) if size % (1 << shift) == 0)
    return f"{size >> unit} {({30: 'GiB', 20: 'MiB', 10: 'KiB', 0: 'bytes'})[unit]}"
