"""One phase as a mismatch needs it: its tokens, and the values of its cells by call."""

from __future__ import annotations

import math
from dataclasses import field
from functools import cached_property

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.comparison.mismatch.names import Name
from mindrlhf_msprobe.comparison.mismatch.rows.values import Form, Value
from mindrlhf_msprobe.comparison.tokens.axes.keys import Keys
from mindrlhf_msprobe.comparison.tokens.inputs import CallInputs, Starts, given_by_trainer
from mindrlhf_msprobe.comparison.tokens.saved_samples.ids import saved_samples
from mindrlhf_msprobe.comparison.tokens.saved_samples.windows import SavedSample
from mindrlhf_msprobe.comparison.tokens.sequences import NoTokens, PhaseTokens, read_tokens
from mindrlhf_msprobe.phases import PHASE_TOKENS
from mindrlhf_msprobe.phases import PHASES as KNOWN
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.operators import is_operator
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import Entry, Record, network_name
from mindrlhf_msprobe.trends.derived import Settings

_IOS = ("input", "output")


@dataclass
class Side:
    """One phase of one step and rank.

    Attributes:
        samples: prompts and responses that the step saved.
        values: by name, in time.
        parameters: by their names in the network, as they were first recorded.
        cells: cell → class, in the order of their first calls.
    """

    run: Run
    phase: str
    step: int
    rank: int
    tokens: PhaseTokens
    samples: tuple[SavedSample, ...] = ()
    values: dict[Name, Value] = field(default_factory=dict)
    parameters: dict[str, Record] = field(default_factory=dict)
    cells: dict[str, str] = field(default_factory=dict)

    @property
    def window(self) -> tuple[int, float]:
        """The first and the last token that were asked for; see `coverage`."""
        of = next((known for known in KNOWN if known.name == self.phase), None)
        config = self.run.config()
        if of is None or not of.counts_tokens or config is None:
            return 0, math.inf
        return config.token_range_start, config.token_range_end

    @cached_property
    def keys(self) -> Keys:
        """Which token each column of a mask or of scores is; known once the tokens are."""
        return Keys(self.tokens)


def read_side(run: Run, phase: str, step: int, rank: int) -> Side:
    """Read one phase.

    Raises:
        NoTokens: nothing says which tokens went through it.
    """
    found = Side(run, phase, step, rank, PhaseTokens((), ()))
    outermost: list[Entry] = []
    number = -1
    seen: dict[str, int] = {}
    forms: dict[Form, Form] = {}
    given = _given(run, phase, step, rank)
    starts = Starts(given)
    for entry in run.each_entry(phase, step, rank):
        if is_operator(entry.name):  # its calls are counted otherwise, and cells tell enough
            continue
        if entry.direction != "forward":
            continue
        if entry.parent is None:
            outermost.append(entry)
            if starts.at(entry) is not None:
                number, seen = number + 1, {}
        nth = seen[entry.cell] = seen.get(entry.cell, -1) + 1
        found.cells.setdefault(entry.cell, entry.class_name)
        _take(found, entry, number, nth, forms)
    pad = Settings.read(run.configurations()).pad
    found.samples = saved_samples(lambda key: run.key_data(key, step, rank), pad)
    found.tokens = read_tokens(outermost, given, pad, found.samples)
    found.values = dict(sorted(found.values.items(), key=lambda item: item[1].time))
    return found


def _given(run: Run, phase: str, step: int, rank: int) -> list[tuple[int, CallInputs]]:
    """Return what the trainer said of a phase by `phase.tokens`.

    Raises:
        NoTokens: it cannot be read.
    """
    try:
        return given_by_trainer(run.key_data(PHASE_TOKENS, step, rank), phase)
    except (ArrayFileError, ValueError, TypeError, KeyError) as error:
        raise NoTokens.saying("tokens.not_stored", record=PHASE_TOKENS, why=error) from None


def read_parameters(run: Run, phase: str, step: int, rank: int) -> dict[str, Record]:
    """Return the parameters of a phase by their names in the network, as first recorded."""
    found: dict[str, Record] = {}
    for entry in run.each_entry(phase, step, rank):
        _parameters(found, entry)
    return found


def _take(side: Side, entry: Entry, number: int, nth: int, forms: dict[Form, Form]) -> None:
    _parameters(side.parameters, entry)
    if number < 0:
        return
    for record in entry.records:
        if record.io not in _IOS or not record.leaf.is_tensor:
            continue
        name = Name(entry.cell, nth, record.io, record.path)
        time = entry.seq if record.io == "input" or entry.end is None else entry.end
        value = side.values.get(name)
        if value is None:
            value = side.values[name] = Value(time, entry.class_name, entry.name)
        value.add(number, entry.call, record, forms)


def _parameters(found: dict[str, Record], entry: Entry) -> None:
    for record in entry.records:
        if record.io == "parameters" and record.leaf.is_tensor:
            found.setdefault(network_name(entry.cell, record.path), record)
