"""Calls of a network that returns of each token a number that all tokens up to it make."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mindrlhf_msprobe.sequences.batch import Sample
from mindrlhf_msprobe.storage.arrays.npy import dtype_name, save_npy
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.records import Entry, Record

HIDDEN = 6
PAD = 0


def saved_sample(prompt, response, size=None):
    """Return a prompt and its response as they would be saved; behind its end it is below 0."""
    ids = np.array(response, np.int64)
    return Sample(np.array(prompt, np.int64), ids, int((ids >= 0).sum()) if size is None else size)


@dataclass
class CausalPhase:
    """Calls of a network, as they would be recorded."""

    directory: object
    entries: list = field(default_factory=list)

    def call(self, ids, output, first_call=0, **inputs):
        """Add a call: token ids, what else it was given, and what it returned."""
        number = len(self.entries) + first_call
        name = f"Cell.root.Net.forward.{number}"
        records = [self.record(name, "input", "0", np.asarray(ids, np.int32), "tokens")]
        records += [
            self.record(name, "input", str(at), np.asarray(value), argument)
            for at, (argument, value) in enumerate(inputs.items(), start=1)
            if value is not None
        ]
        records.append(self.record(name, "output", "0", np.asarray(output, np.float64)))
        place = {"phase": "p", "step": 0, "rank": 0}
        seq = 2 * number
        self.entries.append(Entry(name, **place, seq=seq, end=seq + 1, records=tuple(records)))

    def record(self, entry, io, path, array, argument=""):
        self.directory.mkdir(exist_ok=True)
        file = self.directory / f"{entry}.{io}.{path}.npy"
        save_npy(file, array)
        leaf = Leaf("mindspore.Tensor", dtype_name(array.dtype), array.shape)
        return Record(f"{entry}.{io}.{path}", io, path, leaf, str(file), argument)


def count_named(tokens, expected):
    """Return how many rows are named; each that is must stand behind the tokens expected of it.

    Args:
        tokens: what was read of a phase.
        expected: of each row of each call its token and all before it.
    """
    named = 0
    for call, rows in zip(tokens.calls, expected):
        for sequence, position, row in zip(call.sequence.tolist(), call.position.tolist(), rows):
            if sequence >= 0:
                assert tokens.sequences[sequence][: position + 1].tolist() == [*row]
                named += 1
    return named


def value(tokens):
    """Return what the network returns of a token: made of it and of all before it, [hidden]."""
    made = np.zeros(HIDDEN)
    for token in tokens:
        made = made * 7919 % 2147483647 + np.arange(1, HIDDEN + 1) * (token + 7)
    return made


def values(tokens):
    return np.array([value(tokens[: at + 1]) for at in range(len(tokens))])
