"""What the axes of a tensor are: samples, tokens, heads, channels; only where that is known.

Samples and tokens come from the token ids that the network was given, heads and channels from what
its cells were built with. An axis that common layouts of these sizes call by two names has none.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mindrlhf_msprobe.comparison.pairing.names import ROOT
from mindrlhf_msprobe.comparison.pairing.timeline import DATA
from mindrlhf_msprobe.comparison.preflight.networks import attributes_of, role_of
from mindrlhf_msprobe.comparison.verdict.first_difference import (
    FirstDifference,
    of_entries,
    of_saves,
)
from mindrlhf_msprobe.findings import Inside
from mindrlhf_msprobe.phases import INPUT_KEYS, LOG_PROB, OLD_LOG_PROB, REF_LOG_PROB
from mindrlhf_msprobe.storage.operators import is_operator
from mindrlhf_msprobe.storage.records import Entry

SAMPLE, TOKEN, HEAD = "sample", "token", "head"
CHANNEL, TOKEN_ID, ROW = "channel", "token_id", "row"
_HEAD_SIZE, _ANY = "head_size", "any"

#: Keys that hold one value a token, or one a sample.
_PER_TOKEN = {
    *(*INPUT_KEYS, *LOG_PROB, *OLD_LOG_PROB, *REF_LOG_PROB),
    *("values", "rewards", "reward", "advantages", "returns"),
}
_HEADS = frozenset(
    [
        *("num_heads", "n_head", "n_heads", "num_head", "head_num", "num_attention_heads"),
        *("n_kv_head", "n_kv_heads", "num_kv_heads", "num_key_value_heads"),
    ]
)
_CHANNELS = frozenset(
    ["hidden_size", "embed_dim", "embedding_size", "d_model", "n_embd", "dim", "hidden_dim"]
)
_HEAD_SIZES = frozenset(
    ["head_dim", "size_per_head", "hidden_size_per_attention_head", "head_size"]
)
_VOCABULARY = frozenset(["vocab_size", "vocab_table_size", "num_embeddings", "padded_vocab_size"])
_OF_INPUT = frozenset(["in_channels", "in_features", "input_size"])
_OF_OUTPUT = frozenset(["out_channels", "out_features", "output_size"])
_IDS = re.compile(r"(^|_)(ids?|tokens?)$")

_LAYOUTS: tuple[tuple[str, ...], ...] = (
    (SAMPLE, TOKEN),
    (SAMPLE, CHANNEL),
    (SAMPLE, TOKEN_ID),
    (ROW, CHANNEL),
    (ROW, TOKEN_ID),
    (ROW, _ANY),
    (SAMPLE, TOKEN, CHANNEL),
    (SAMPLE, TOKEN, TOKEN_ID),
    (SAMPLE, TOKEN, TOKEN),
    (SAMPLE, TOKEN, _ANY),
    (TOKEN, SAMPLE, CHANNEL),
    (TOKEN, SAMPLE, TOKEN_ID),
    (TOKEN, SAMPLE, _ANY),
    (SAMPLE, HEAD, TOKEN, _HEAD_SIZE),
    (SAMPLE, HEAD, _HEAD_SIZE, TOKEN),
    (SAMPLE, TOKEN, HEAD, _HEAD_SIZE),
    (TOKEN, SAMPLE, HEAD, _HEAD_SIZE),
    (SAMPLE, HEAD, TOKEN, TOKEN),
    (SAMPLE, HEAD, TOKEN, _ANY),
    (SAMPLE, TOKEN, HEAD, _ANY),
    (TOKEN, SAMPLE, HEAD, _ANY),
    (SAMPLE, _ANY, TOKEN, TOKEN),
)
#: Where the token ids are not known: what the cells' own sizes say.
_WITHOUT_IDS: tuple[tuple[str, ...], ...] = (
    (_ANY, CHANNEL),
    (_ANY, TOKEN_ID),
    (_ANY, _ANY, CHANNEL),
    (_ANY, _ANY, TOKEN_ID),
    (_ANY, _ANY, HEAD, _HEAD_SIZE),
    (_ANY, HEAD, _ANY, _HEAD_SIZE),
)
_OF_PARAMETERS: tuple[tuple[str, ...], ...] = ((CHANNEL,), (TOKEN_ID, CHANNEL), (CHANNEL, TOKEN_ID))


def with_axes(inside: Inside | None, first: FirstDifference) -> Inside | None:
    """Return what differs inside the first difference with the names of its axes."""
    if inside is None:
        return None
    shape = first.record.leaf.shape or ()
    names: dict[int, str] = {}
    if first.event.kind != DATA:
        names = _of_entry(first, shape)
    elif first.event.name not in _PER_TOKEN or first.record.leaf.type == "str":
        pass  # nothing is known of its axes
    elif first.record.path:  # an element of a list, which is one sample
        names = {0: TOKEN} if len(shape) == 1 else {}
    elif len(shape) == 2:
        names = {0: SAMPLE, 1: TOKEN}
    elif len(shape) == 1 and shape[0] in _samples(first):
        names = {0: SAMPLE}
    return replace(inside, axes=tuple(sorted(names.items())))


def _samples(first: FirstDifference) -> set[int]:
    """Return how many samples other keys of the same micro-step hold."""
    counts: dict[str, int] = {}
    for other, _ in of_saves(first.pairs, micro_step=first.event.micro_step):
        event, record = other.event, other.record
        if event.name == first.event.name or event.name not in _PER_TOKEN:
            continue
        shape = record.leaf.shape or ()
        if record.path.isdigit():
            counts[event.name] = counts.get(event.name, 0) + 1
        elif len(shape) == 2 and record.leaf.type != "str":
            counts[event.name] = shape[0]
    return {*counts.values()}


def _of_entry(first: FirstDifference, shape: Sequence[int]) -> dict[int, str]:
    entry, record, run = first.called, first.record, first.runs[0]
    if is_operator(entry.name):  # any layout may lie between two operators
        return {}
    attributes = attributes_of(run, role_of(run, first.finding.rank, entry.phase), entry.cell)
    heads, channels = _values(attributes, _HEADS), _values(attributes, _CHANNELS)
    sizes = {
        HEAD: heads,
        CHANNEL: channels,
        _HEAD_SIZE: _values(attributes, _HEAD_SIZES)
        | {c // h for c in channels for h in heads if c % h == 0},
        TOKEN_ID: _values(attributes, _VOCABULARY),
    }
    if record.io not in ("input", "output"):
        return _named(shape, _OF_PARAMETERS, sizes)
    # In a backward pass, what arrives has the shape of the output.
    arrives = (record.io == "input") == (entry.direction == "forward")
    own = _values(attributes[:1], _OF_INPUT if arrives else _OF_OUTPUT)
    last = len(shape) - 1
    channel = {last: CHANNEL} if shape and shape[last] in own else {}
    ids = _token_ids(first, entry)
    if len(ids) != 1:
        alone = shape.count(shape[last]) == 1 if shape else False
        return (_named(shape, _WITHOUT_IDS, sizes, strict=True) if alone else {}) | channel
    samples, tokens = ids.pop()
    sizes |= {SAMPLE: {samples}, TOKEN: {tokens}}
    if tokens > 1:
        sizes[ROW] = {samples * tokens}
    is_ids = entry.cell == ROOT and len(shape) == 2 and record.leaf.is_integer
    return _named(shape, ((SAMPLE, TOKEN),) if is_ids else _LAYOUTS, sizes) | channel


def _values(attributes: Sequence[Mapping[str, Any]], names: Collection[str]) -> set[int]:
    found = (value for own in attributes for name, value in own.items() if name in names)
    return {value for value in found if type(value) is int and value > 1}


def _token_ids(first: FirstDifference, entry: Entry) -> set[tuple[int, int]]:
    """Return the shapes of the token ids that the network was given when the entry ran."""
    found: set[tuple[int, int]] = set()
    # What cells were given in integers in the same opening of the phase, and token.
    of_opening = of_entries(
        first.pairs, entry.phase, opening=entry.opening, direction="forward", io="input"
    )
    given = [
        (pair.record, where, pair.record.leaf.shape or ())
        for pair, _, where in of_opening
        if where.token == entry.token and pair.record.leaf.is_integer
    ]
    embedded = {
        shape
        for _, where, shape in given
        if where.cell != ROOT and "embed" in f"{where.cell} {where.class_name}".lower()
    }
    for record, where, shape in given:
        if where.cell == ROOT and len(shape) == 2:
            argument = record.argument or record.path.rpartition(".")[2]
            if _IDS.search(argument) or shape in embedded:
                found.add((shape[0], shape[1]))
    return found


def _named(
    shape: Sequence[int],
    layouts: Sequence[tuple[str, ...]],
    sizes: Mapping[str, set[int]],
    *,
    strict: bool = False,
) -> dict[int, str]:
    """Return the names of those axes on which all layouts that fit agree.

    Args:
        strict: a layout that does not name an axis does not agree with one that does.
    """
    fitting = [
        layout
        for layout in layouts
        if len(layout) == len(shape)
        and all(name == _ANY or n in sizes.get(name, ()) for name, n in zip(layout, shape))
    ]
    names: dict[int, str] = {}
    for axis, possible in enumerate(zip(*fitting)):
        known = {CHANNEL if name == _HEAD_SIZE else name for name in possible}
        known -= set() if strict else {_ANY}
        if len(known) == 1 and known != {_ANY}:
            names[axis] = known.pop()
    return names
