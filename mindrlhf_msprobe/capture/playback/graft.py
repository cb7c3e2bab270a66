"""Records of another run that take the place of this training's own: `graft`.

Compiled networks (GRAPH_MODE) take parameters alone, all else needs PyNative mode.

With the outputs of one cell of run A in run B, everything behind that cell either agrees with A,
so that the cell explains all of the difference, or it does not. What is put in:

    output           what a cell returned; gradients flow through to B's own computation
    input            what it was given; likewise
    gradient         the gradient that arrives at its outputs
    input_gradient   the gradient that leaves through its inputs
    parameters       parameters, when the phase opens
    updated_parameters  the same behind each update: when a later call of the phase begins, and when
                     the phase closes, as the calls behind it have them
    parameters_grad  gradients of parameters, of one backward pass
    code             all that the cell's own code makes, between the cells in it: what it gives to
                     them and what it returns, forward and backward

Where this training computes the same bit for bit, nothing is put in: a graft that changed nothing
is none, and each one that did computes by itself something else than A does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from mindrlhf_msprobe.capture.framework.hooks import unseen
from mindrlhf_msprobe.capture.framework.private import has_gradient_graph
from mindrlhf_msprobe.capture.operators.interception import not_intercepted
from mindrlhf_msprobe.capture.playback.forms import tensor_of
from mindrlhf_msprobe.capture.tensors.summary import HostTensor, is_sharded, to_host
from mindrlhf_msprobe.capture.tensors.tree import fields_of, values_in
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.config import CODE, GRAFTED, ProbeConfig
from mindrlhf_msprobe.errors import RunError, UsageError, nearest_of
from mindrlhf_msprobe.log import warn
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError, roundoff
from mindrlhf_msprobe.storage.leaves import child_path
from mindrlhf_msprobe.storage.manifest.manifest import Replaced
from mindrlhf_msprobe.storage.place import LayerPlace
from mindrlhf_msprobe.storage.reading.reader import Run, open_run
from mindrlhf_msprobe.storage.records import Entry, Record, head_of, network_name
from mindrlhf_msprobe.storage.writing.directory import world_of

if TYPE_CHECKING:
    from mindrlhf_msprobe.capture.pynative.gradients import GradientPlace
    from mindrlhf_msprobe.capture.recording.recorder import Recorder
    from mindrlhf_msprobe.phases import Phase


_UPDATED = "updated_parameters"
_ROUNDINGS = 8  # of its largest element, by which a gradient may be off that is computed of another
_MADE = ("output", "parameters_grad")  # by a cell's own code, forward and backward


@dataclass(frozen=True)
class Wanted:
    """One graft of the configuration.

    Attributes:
        run: whose records are put in.
        entries: heads of entries (all calls of a cell), entries (one call), or records.
        what: which parts of them: see GRAFTED in config.py.
        steps, phases: where; empty: everywhere.
    """

    run: Run
    entries: tuple[str, ...]
    what: tuple[str, ...]
    steps: tuple[int, ...]
    phases: tuple[str, ...]

    def is_at(self, step: int, phase: str) -> bool:
        """Return whether it is put in in a step and a phase."""
        return (not self.steps or step in self.steps) and (not self.phases or phase in self.phases)

    @property
    def cells(self) -> set[str]:
        """What the names of all its entries begin with."""
        return {*map(head_of, self.entries)}

    def records_of(self, entry: Entry, *, updated: bool = False) -> Iterator[_Named]:
        """Yield the records of an entry that are put in.

        Args:
            updated: those of `updated_parameters` alone; else those of all others.
        """
        own, around = _names(entry.name), _names(entry.parent or "")
        for record in entry.records:
            for what in self.what:
                if (what == _UPDATED) is not updated:
                    continue
                names: tuple[str, ...] = ()
                if what != CODE:
                    names = own if GRAFTED[what] == (entry.direction, record.io) else ()
                elif record.io in _MADE:
                    names = own if record.leaf.rounding is None else (*own, *around)
                elif record.io == "input":
                    names = around
                named = {*names, record.name} if names else ()
                yield from (_Named(text, what, record) for text in self.entries if text in named)


class _Named(NamedTuple):
    """A record that is put in, the entry of the configuration that names it, and as what."""

    text: str
    what: str
    record: Record


def _names(entry: str) -> tuple[str, ...]:
    """Return what an entry is named by: its cell, and the call, by either direction."""
    head, call = head_of(entry), entry.rpartition(".")[2]
    return (head, entry, f"{head}.forward.{call}", f"{head}.backward.{call}") if entry else ()


class Grafts:
    """What is put into the training of one process.

    Args:
        config: with `graft`.
        rank: this process's.

    Raises:
        RunError: a run cannot be read, is the one that is recorded, or lacks what is to be put in:
            the entry, its elements, or this rank.
    """

    def __init__(self, config: ProbeConfig, rank: int) -> None:
        self._rank = rank
        self._phases = config.phase_table()
        self._recorder: Recorder | None = None
        self._wanted: list[Wanted] = []
        own = Path(config.dump_path).expanduser().resolve()
        runs: dict[str, Run] = {}
        for given in config.graft:
            if given["ranks"] and rank not in given["ranks"]:
                self._check_ranks(given, config)
                continue
            path = given["from"]
            if path not in runs:
                root = Path(path).expanduser().absolute()
                if root.resolve() == own:
                    raise RunError.saying("error.run_itself", key="graft", path=path)
                runs[path] = open_run(root)
            parts = (given[name] for name in ("entries", "what", "steps", "phases"))
            self._wanted.append(Wanted(runs[path], *parts))
        for one in self._wanted:
            if one.steps and not any(map(config.records_step, one.steps)):
                steps = ", ".join(map(str, one.steps))
                raise RunError.saying("error.graft_outside", path=one.run.path, steps=steps)
            self._check(one)
        #: Of each graft how many records were put in, of which this training computes something
        #: else, by phase, cell and part, in which steps, and why others were not put in.
        self._put = [0] * len(self._wanted)
        self._changed: list[dict[tuple[str, str, str], Counter[int]]] = [{} for _ in self._wanted]
        self._left: list[Counter[Message]] = [Counter() for _ in self._wanted]

    def record(self, recorder: Recorder) -> None:
        """Put them into what is recorded from now on, and say so."""
        self._recorder = recorder
        for one in self._wanted:
            warn("log.grafted", what=[*one.what], entries=[*one.entries], path=one.run.path)
        self.note()
        recorder.phases.graft(self)

    def _check_ranks(self, given: Mapping[str, Any], config: ProbeConfig) -> None:
        """Refuse a graft none of whose ranks is recorded in this job: it would put nothing in.

        Each rank that is recorded looks, for one that is not there cannot say so.
        """
        size = max(world_of()["size"], self._rank + 1)
        if not any(rank < size and config.records_rank(rank) for rank in given["ranks"]):
            ranks = ", ".join(map(str, given["ranks"]))
            raise RunError.saying("error.graft_no_rank", path=given["from"], ranks=ranks, size=size)

    def _check(self, wanted: Wanted) -> None:
        """Refuse what cannot be put in; what another rank recorded is put in there alone."""
        run, rank = wanted.run, self._rank
        missing, names = set(wanted.entries), set()
        places = [at for at in run.layer_places() if wanted.is_at(at.step, at.phase)]
        if rank not in run.ranks or not places:
            raise RunError.saying("error.graft_no_layers", path=run.path, rank=rank)
        places.sort(key=lambda at: at.rank != rank)
        for at in places:
            for entry in run.each_entry(*at):
                records = *wanted.records_of(entry), *wanted.records_of(entry, updated=True)
                for text, _, record in records:
                    if record.leaf.dtype is not None and record.location is None:
                        raise RunError.saying(
                            "error.graft_no_elements", path=run.path, record=record.name
                        )
                    missing.discard(text)
                names.add(head_of(entry.name))
            if not missing:
                return
        text = min(missing)
        raise RunError.saying(
            *("error.graft_no_entry",),
            entry=text,
            what=", ".join(wanted.what),
            path=run.path,
            nearest=nearest_of(text, sorted(names)),
        )

    def of_phase(self, phase: Phase, step: int, opening: int) -> PhaseGraft | None:
        """Return what is put into one opening of a phase; None: nothing.

        Raises:
            UsageError: the network is compiled, and takes no tensors but its parameters.
        """
        found = PhaseGraft(self, phase.name, step, opening)
        for number, wanted in enumerate(self._wanted):
            at = LayerPlace(phase.name, step, self._rank)
            if not wanted.is_at(step, phase.name):
                continue
            if at not in wanted.run.layer_places(step, self._rank):
                continue
            ended = -1
            for entry in wanted.run.entries_named(at, wanted.cells):
                if entry.opening <= opening:
                    ended = max(ended, entry.seq)
                found.add(number, entry, wanted)
            if _UPDATED in wanted.what:
                self._add_updated(found, number, at, ended)
        if found.records:
            from mindrlhf_msprobe.capture.graph.watched import graph_mode

            if graph_mode():
                raise UsageError.saying("error.graft_in_graph_mode", phase=phase.name)
        during = any(found.during.values())
        return found if found.records or found.parameters or during or found.updated else None

    def _add_updated(self, found: PhaseGraft, number: int, at: LayerPlace, ended: int) -> None:
        """Add the parameters that the phases of a role have first after an opening has ended.

        Those of each cell's first call behind it: what that does not have anew did not change.

        Args:
            at: where the opening stands.
            ended: the place in time of its last entry.
        """
        called: set[str] = set()
        wanted = self._wanted[number]
        role = self._phases[at.phase].role
        names = {name for name, one in self._phases.items() if one.role == role}
        later = [s for s in wanted.run.steps if s > at.step]
        for step in (at.step, *later[:1]):
            behind = (
                entry
                for place in wanted.run.layer_places(step=step, rank=at.rank)
                if place.phase in names
                for entry in wanted.run.entries_named(place, wanted.cells)
                if step > at.step or entry.seq > ended
            )
            for entry in sorted(behind, key=lambda entry: entry.seq):
                if entry.direction == "forward" and entry.cell not in called:
                    called.add(entry.cell)
                    found.add_updated(number, entry, wanted, found.updated)

    def has_put(self, source: _Source, at: PhaseGraft, *, changed: bool) -> None:
        """Count a record that was put in, and whether this training computes something else."""
        self._put[source.number] += 1
        if changed:
            place = at.phase, head_of(source.named.text), source.named.what
            self._changed[source.number].setdefault(place, Counter())[at.step] += 1

    def leave(self, number: int, why: Message) -> None:
        """Count a record that was not put in; say once why."""
        if why not in self._left[number]:
            warn("log.not_grafted", why=why)
        self._left[number][why] += 1

    def note(self) -> None:
        """Note in run.json what was put in so far, and what was not."""
        content = [
            {
                "from": str(wanted.run.path),
                "what": list(wanted.what),
                "entries": list(wanted.entries),
                "put_in": put,
                "changed": [
                    {
                        **dict(zip(("phase", "entry", "what"), place)),
                        **{"records": steps.total(), "steps": [min(steps), max(steps)]},
                    }
                    for place, steps in changed.items()
                ],
                "left_out": [{**why.as_json(), "records": n} for why, n in left.items()],
            }
            for wanted, put, changed, left in zip(
                self._wanted, self._put, self._changed, self._left
            )
        ]
        if content and self._recorder is not None:
            self._recorder.note(Replaced("grafted", content))


@dataclass(frozen=True)
class _Source:
    """A record that is put in: of which graft."""

    number: int
    named: _Named

    @property
    def record(self) -> Record:
        """The record itself."""
        return self.named.record

    @property
    def is_of_inner_cell(self) -> bool:
        """Whether a cell computed it inside the one whose code is put in.

        Those are gradients that are told apart from others beside them, up to a rounding. They are
        put in where they agree, for that rounding depends on what the code adds.
        """
        inner = head_of(self.record.name) != head_of(self.named.text)
        return inner and self.named.what == CODE and self.record.io == "output"

    def tensor(self) -> Tensor:
        """Return its tensor, in memory of its own.

        Raises:
            ArrayFileError: its elements cannot be read.
        """
        return tensor_of(self.record.leaf, self.record.array())


@dataclass
class PhaseGraft:
    """What is put into one opening of a phase.

    Attributes:
        phase, step, opening: of them.
        records: by their names, those that come while it is open.
        parameters: by their names in the network, those that are set when it opens.
        during: likewise, when a call begins before which they were updated; by its entry.
        updated: likewise, when it closes.
        cells: the cells that must be seen for that.
    """

    grafts: Grafts
    phase: str
    step: int
    opening: int
    records: dict[str, _Source] = field(default_factory=dict)
    parameters: dict[str, _Source] = field(default_factory=dict)
    during: dict[str, dict[str, _Source]] = field(default_factory=dict)
    updated: dict[str, _Source] = field(default_factory=dict)
    cells: set[str] = field(default_factory=set)
    _first: dict[str, str] = field(default_factory=dict)  # of a cell's entries in the opening
    _own: dict[str, Parameter] = field(default_factory=dict)  # the network's parameters
    _parts: set[tuple[str, str]] = field(default_factory=set)
    _came: set[str] = field(default_factory=set)
    _rounded: bool = False  # whether a gradient was put in that is known up to a rounding

    def add(self, number: int, entry: Entry, wanted: Wanted) -> None:
        """Take what of an entry is to be put in; of several grafts that name it, of the first."""
        is_here = entry.opening == self.opening and entry.direction == "forward"
        is_first = is_here and self._first.setdefault(entry.cell, entry.name) == entry.name
        for named in wanted.records_of(entry):
            source = _Source(number, named)
            if named.record.leaf.dtype is None:
                continue  # it has no elements: None, a number, a text
            if named.record.io != "parameters":
                self._add(source, entry)
            elif is_first or entry.opening < self.opening:
                name = network_name(entry.cell, named.record.path)
                known = self.parameters.get(name)
                if known is None or known.number == number:
                    self.parameters[name] = source
        if is_here and not is_first:  # what it has anew, an update before it has made
            self.add_updated(number, entry, wanted, self.during.setdefault(entry.name, {}))
            self.cells.add(entry.cell)

    def add_updated(
        self, number: int, entry: Entry, wanted: Wanted, to: dict[str, _Source]
    ) -> None:
        """Take the parameters that a call has anew, as an update has made them."""
        for named in wanted.records_of(entry, updated=True):
            if named.record.leaf.dtype is not None:
                name = network_name(entry.cell, named.record.path)
                to.setdefault(name, _Source(number, named))

    def _add(self, source: _Source, entry: Entry) -> None:
        """Take a record: of the code around its cell if there is none of the cell itself."""
        record = source.record
        known = self.records.get(record.name)
        if known is not None and (source.is_of_inner_cell or not known.is_of_inner_cell):
            return
        self.records[record.name] = source
        self.cells.add(entry.cell)
        self._parts.add((entry.name, record.io))

    def open(self, network: nn.Cell) -> None:
        """Set the parameters that the phase begins with."""
        self._own = dict(network.parameters_and_names())
        self._set(self.parameters)

    def _set(self, parameters: Mapping[str, _Source]) -> None:
        for name, source in parameters.items():
            parameter = self._own.get(name)
            tensor = None if parameter is None else self._taken(source, parameter)
            if tensor is not None:
                with not_intercepted():
                    ops.assign(parameter, tensor)  # in place: what is compiled holds its address

    def close(self) -> None:
        """Set the parameters that an update ends with; count what did not come."""
        self._set(self.updated)
        during = [source for of_call in self.during.values() for source in of_call.values()]
        for source in (*self.records.values(), *during):
            if source.record.name not in self._came:
                self.grafts.leave(source.number, message("graft.did_not_run"))
        self.grafts.note()

    def inputs(
        self, entry: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments that a cell runs with; set its parameters, if they were updated."""
        self._set(self.during.get(entry, {}))
        if (entry, "input") not in self._parts:
            return args, kwargs
        path = f"{entry}.input"
        given = tuple(self._replaced(item, f"{path}.{i}", ()) for i, item in enumerate(args))
        return given, {k: self._replaced(v, child_path(path, k), ()) for k, v in kwargs.items()}

    def output(self, entry: str, output: Any, given: Any) -> Any:
        """Return what the training goes on with in the place of an output; None: with that.

        Args:
            given: the arguments of the cell: one that it returned is not changed in place.
        """
        path = f"{entry}.output"
        if (entry, "output") not in self._parts:
            return None
        kept = {id(value) for value in values_in(given) if isinstance(value, Tensor)}
        several = isinstance(output, tuple) and not hasattr(output, "_fields")
        if not several:
            return self._replaced(output, f"{path}.0", kept)
        return tuple(self._replaced(item, f"{path}.{i}", kept) for i, item in enumerate(output))

    def gradient(self, record: str, gradient: Tensor) -> Tensor | None:
        """Return what a gradient is replaced by, or None.

        Args:
            record: its name.
        """
        return self._taken(self.records.get(record), gradient)

    def behind(self, tensor: Tensor, place: GradientPlace) -> Tensor:
        """Return a tensor behind which the gradient of a record is put in; else the same."""
        if place.path not in self.records:
            return tensor

        def hook(gradients: tuple[Tensor, ...]) -> Tensor | None:
            gradient, beside = gradients[0], place.beside
            own = gradient if beside is None else gradient - beside
            place.put_in = self.gradient(place.path, own)
            if place.put_in is None or beside is None:
                return place.put_in
            self._rounded = True
            return place.put_in + beside

        return ops.HookBackward(hook)(tensor)

    def _replaced(self, value: Any, path: str, kept: Any) -> Any:
        """Return a value with the tensors in it replaced that are put in.

        Tuples, lists and dicts are made anew; in other structures tensors get other elements.
        """
        if isinstance(value, Tensor):
            tensor = self._taken(self.records.get(path), value)
            return value if tensor is None else _instead(value, tensor)
        if type(value) in (tuple, list):
            items = (
                self._replaced(item, child_path(path, i), kept) for i, item in enumerate(value)
            )
            return type(value)(items)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            named = zip(value._fields, value)
            return type(value)(*(self._replaced(v, child_path(path, k), kept) for k, v in named))
        if type(value) is dict:
            return {k: self._replaced(v, child_path(path, str(k)), kept) for k, v in value.items()}
        for name, item in fields_of(value) or ():
            if not isinstance(item, Tensor):
                self._replaced(item, child_path(path, str(name)), kept)
                continue
            source = self.records.get(child_path(path, str(name)))
            if source is not None and (isinstance(item, Parameter) or id(item) in kept):
                self.grafts.leave(source.number, message("graft.is_an_input"))
            elif source is not None:
                new = self._replaced(item, child_path(path, str(name)), kept)
                if new is not item:
                    item.assign_value(new)
        return value

    def _taken(self, source: _Source | None, value: Tensor) -> Tensor | None:
        """Return the tensor to put in; None where there is none, it is the same, or does not fit.

        What is the same and what does not fit is counted, too.
        """
        if source is None:
            return None
        self._came.add(source.record.name)
        if is_sharded(value):
            self.grafts.leave(source.number, message("graft.is_sharded"))
            return None
        try:
            tensor = source.tensor()
        except (ArrayFileError, OSError) as error:
            why = getattr(error, "said", None) or str(error)
            self.grafts.leave(source.number, message("graft.unread", why=why))
            return None
        if (tensor.shape, tensor.dtype) == (value.shape, value.dtype):
            own, other = to_host(value), to_host(tensor)
            is_same = own.array.tobytes() == other.array.tobytes()
            agrees = is_same or self._within_rounding(own, other, source.record)
            if not agrees and source.is_of_inner_cell:
                return None  # its own fault stays
            self.grafts.has_put(source, self, changed=not agrees)
            return None if is_same else tensor
        found, here = (f"{one.dtype} {list(one.shape)}" for one in (tensor, value))
        self.grafts.leave(source.number, message("graft.does_not_fit", found=found, own=here))
        return None

    def _within_rounding(self, own: HostTensor, other: HostTensor, record: Record) -> bool:
        """Return whether two gradients agree as far as each is known.

        A gradient that was told apart from what stands beside it is known up to a rounding. Once
        one was put in, so are those that are computed of it.
        """
        rounding = record.leaf.rounding
        if rounding is None and self._rounded and ".forward." not in record.name:
            largest = float(np.abs(other.values()).max(initial=0))
            rounding = _ROUNDINGS * roundoff(own.dtype) * largest
        if rounding is None or not own.array.size:
            return False
        return bool(np.abs(own.values() - other.values()).max() <= 2 * rounding)


def _instead(own: Tensor, tensor: Tensor) -> Tensor:
    """Return a tensor with other elements in the place of one, in the same graph of gradients.

    The gradient goes on to the own one as it comes. (A cell with a bprop would do that more
    plainly, but not where gradients come of `loss.backward()`.)
    """
    if not has_gradient_graph(own) and not isinstance(own, Parameter):
        return tensor
    arrived: list[Tensor] = []
    with unseen():
        own = ops.HookBackward(lambda _: arrived.pop())(own)  # what comes of `where` is zero
        replaced = ops.where(Tensor(True), tensor, own)
        return ops.HookBackward(lambda gradients: arrived.append(gradients[0]))(replaced)
