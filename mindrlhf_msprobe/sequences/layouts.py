"""Which axes of a tensor are its tokens, and its values with a row for each token.

A layout is read from the shape, by the batch and width of the token ids of its call. Where a shape
fits several, the shapes of the same value in other calls decide; where they do not, nobody does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from enum import Enum

import numpy as np

from mindrlhf_msprobe.sequences.calls import UNKNOWN, TokenCall


class Layout(Enum):
    """How the axes of a tensor stand: b batch, s sequence, t both in one, h heads, d the others."""

    BATCH_FIRST = "b s d"
    TOKENS = "t d"
    SEQUENCE_FIRST = "s b d"
    HEADS = "b h s d"
    SAMPLES = "b d"  # of the last token of each sample
    POSITIONS = "s d"  # the same for all samples


Shape = tuple[int, ...]


def layouts_of(shape: Shape, batch: int, width: int, *, heads: bool = False) -> set[Layout]:
    """Return the layouts that a shape fits; those that are one and the same are named once.

    Args:
        heads: a last axis as long as the sequence has features, no keys.
    """
    found = {layout for layout, fits in _FITS.items() if shape and fits(shape, batch, width)}
    if heads and len(shape) == 4 and (shape[0], shape[2]) == (batch, width):
        found.add(Layout.HEADS)
    if Layout.BATCH_FIRST in found and 1 in (batch, width):
        found.discard(Layout.TOKENS)
    return found


def _is_heads(shape: Shape, batch: int, width: int) -> bool:
    # A last axis as long as the sequence may be that of keys, whose columns are no features.
    return len(shape) == 4 and (shape[0], shape[2]) == (batch, width) and shape[3] != width


def _is_positions(shape: Shape, batch: int, width: int) -> bool:
    leading = shape.index(width) if width in shape else len(shape)
    alone = len(shape) - leading == 2 and set(shape[:leading]) <= {1}
    return alone and batch > 1 and width > 1


_FITS: dict[Layout, Callable[[Shape, int, int], bool]] = {
    Layout.BATCH_FIRST: lambda shape, batch, width: shape[:2] == (batch, width),
    Layout.TOKENS: lambda shape, batch, width: shape[0] == batch * width and len(shape) in (2, 3),
    Layout.SEQUENCE_FIRST: lambda shape, batch, width: (
        shape[:2] == (width, batch) and 1 not in (batch, width)
    ),
    Layout.HEADS: _is_heads,
    Layout.SAMPLES: lambda shape, batch, width: len(shape) == 2 and shape[0] == batch and width > 1,
    Layout.POSITIONS: _is_positions,
}


def only_layout(
    seen: Iterable[tuple[Shape, int, int]], *, heads: bool = False
) -> dict[tuple[Shape, int, int], Layout]:
    """Return the layout of each call of one value; without those that nothing decides.

    Args:
        seen: of each call, the shape of the value, and the batch and width of the token ids.
        heads: a last axis as long as the sequence has features, no keys.
    """
    fits = {call: layouts_of(*call, heads=heads) for call in seen}
    alone = {next(iter(found)) for found in fits.values() if len(found) == 1}
    chosen = {}
    for call, found in fits.items():
        wanted = found & alone if len(found) > 1 else found
        if len(wanted) != 1:  # those of other calls go with one
            wanted = found & ({Layout.SEQUENCE_FIRST} & alone or {Layout.BATCH_FIRST} & alone)
        if not wanted and found <= {Layout.BATCH_FIRST, Layout.SEQUENCE_FIRST}:
            wanted = found & {Layout.BATCH_FIRST}  # as the token ids themselves stand
        if len(wanted) == 1:
            chosen[call] = next(iter(wanted))
    return chosen


def rows_of(values: np.ndarray, layout: Layout, call: TokenCall) -> tuple[np.ndarray, np.ndarray]:
    """Return a tensor with a row for each token, [rows, columns], and which rows of the call.

    Args:
        values: as recorded; or its sketch, whose last axis is shorter.

    Returns:
        A view where that is possible; and int64 [rows], rows of the call's token ids.
    """
    batch, width = call.batch, call.width
    every = np.arange(batch * width)
    if layout is Layout.HEADS:
        values = values.transpose(0, 2, 1, 3)
    elif layout is Layout.SEQUENCE_FIRST:
        values = values.swapaxes(0, 1)
    elif layout is Layout.SAMPLES:
        last = call.last_rows()
        known = last != UNKNOWN
        return values[known], last[known]
    elif layout is Layout.POSITIONS:
        values = values.reshape(width, -1)
        return np.broadcast_to(values, (batch, *values.shape)).reshape(batch * width, -1), every
    return values.reshape(batch * width, math.prod(values.shape) // max(1, batch * width)), every
