"""What run.json, the manifest of one rank, holds: every key, what it reads as, and its default.

A file may be of another hand, or damaged. Reading a key never raises: what is
not there, or is not as this package writes it, reads as the key's default; `RunFile.unread` names
what every run says and this file does not. What is not read stays in the file: a part keeps the
JSON object that it stands for, with keys of later versions and in its order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, as_message, in_words, quoted, read_message
from mindrlhf_msprobe.common.printable import shortened
from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.manifest.coverage import read_coverage
from mindrlhf_msprobe.storage.manifest.step_spans import read_recorded, read_thinned

if TYPE_CHECKING:
    from typing_extensions import Self

SCHEMA = 1
TOOL = "mindrlhf_msprobe"

#: When the settings of a run were taken.
AT_START = "start"
AT_FIRST_PHASE = "first_phase"


T = TypeVar("T")
K = TypeVar("K")
#: What a setting is from a step on, in the order of the steps.
Timeline = list[tuple[int, Any]]


class Key(Generic[T]):
    """One key of a part, read and written as an attribute; it is read anew each time.

    Args:
        read: makes the value of what JSON holds under the key; the default where there is none.
        name: in the file, where it is not that of the attribute.
        always: what every run has there, as JSON.
    """

    def __init__(
        self, read: Callable[[Any], T], name: str = "", *, always: type | None = None
    ) -> None:
        self.read, self.name, self.always = read, name, always

    def __set_name__(self, owner: type[Part], attribute: str) -> None:
        self.name = self.name or attribute

    @overload
    def __get__(self, part: None, owner: type) -> Key[T]: ...
    @overload
    def __get__(self, part: Part, owner: type) -> T: ...
    def __get__(self, part: Part | None, owner: type) -> Key[T] | T:
        return self if part is None else self.read(part.json.get(self.name))

    def __set__(self, part: Part, value: T) -> None:
        # Parts may lie in lists, in dicts and in lists in dicts.
        if isinstance(value, dict):
            part.json[self.name] = {name: _of_parts(inner) for name, inner in value.items()}
        else:
            part.json[self.name] = _of_parts(value)

    def __delete__(self, part: Part) -> None:
        del part.json[self.name]


class Part:
    """One JSON object of the file; two are equal if they hold the same."""

    def __init__(self, json: dict[str, Any]) -> None:
        self.json = json

    @classmethod
    def from_json(cls, found: Any) -> Self:
        """Return what stands in a file; what is no object holds nothing."""
        return cls(found if isinstance(found, dict) else {})

    @classmethod
    def make(cls, **values: Any) -> Self:
        """Return a part with these values, in this order."""
        part = cls({})
        for name, value in values.items():
            setattr(part, name, value)
        return part

    @classmethod
    def every_key(cls) -> dict[str, Key[Any]]:
        """Return every key that a part of this kind has, in the order of their declaration."""
        declared = (vars(base).values() for base in reversed(cls.__mro__))
        return {key.name: key for keys in declared for key in keys if isinstance(key, Key)}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Part) and self.json == other.json


P = TypeVar("P", bound=Part)


def _of_parts(value: Any) -> Any:
    if isinstance(value, list):
        return [part.json if isinstance(part, Part) else part for part in value]
    return value.json if isinstance(value, Part) else value


def _any(found: Any) -> Any:
    return found


def _number(found: Any) -> int | None:
    return found if bounds.is_place(found) and found >= 0 else None


def _kind(kind: type[T]) -> Callable[[Any], T | None]:
    return lambda found: found if isinstance(found, kind) else None


_text, _flag, _section = _kind(str), _kind(bool), _kind(dict)


def _object(found: Any) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}


def _texts(found: Any) -> list[str] | None:
    return [t for t in found if isinstance(t, str)] if isinstance(found, list) else None


def _only_texts(found: Any) -> list[str] | None:
    texts = _texts(found)
    return texts if texts is not None and len(texts) == len(found) else None


def _objects(found: Any) -> list[dict[str, Any]]:
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _numbers(found: Any) -> list[int]:
    return [n for n in found if isinstance(n, int)] if isinstance(found, list) else []


def _one(kind: type[P]) -> Callable[[Any], P]:
    return kind.from_json


def _parts(kind: type[P]) -> Callable[[Any], list[P]]:
    def read(found: Any) -> list[P]:
        listed = found[-10_000:] if isinstance(found, list) else ()
        return [kind.from_json(part) for part in listed]

    return read


def _named(read: Callable[[Any], T]) -> Callable[[Any], dict[str, T]]:
    return lambda found: {str(name): read(part) for name, part in _object(found).items()}


#: Changes of one attribute of a cell that are noted: what changes more often is a counter, and
#: nothing is known of it after so many.
MOST_OF_ONE = 8


class Change(Part):
    """A setting that became another one, from a step on."""

    step = Key(_number)
    phase = Key(_text)
    cell = Key(_text)
    name = Key(_text)
    value = Key(_any)


def timelines(changes: Iterable[Change], key: Callable[[Change], K]) -> dict[K, Timeline]:
    """Return what settings became, and at which steps, of the changes whose step is known."""
    found: dict[K, Timeline] = {}
    for change in changes:
        if change.step is not None:
            found.setdefault(key(change), []).append((change.step, change.value))
    return found


class Cells(Part):
    """Cells of one class with the same attributes."""

    kind = Key(_text, "class")
    attributes = Key(_object)
    cells = Key(_texts)


class Network(Part):
    """A network that was watched or ran; `same_as` is another role whose network it is, too.

    `untrained` are the parameters that take no gradients, where others do. `mesh` is the device
    mesh over which they are spread, where they say so: by axis its size and the rank's place.
    """

    role = Key(_text)
    same_as = Key(_text)
    phases = Key(_texts)
    kind = Key(_text, "class")
    training = Key(_flag)
    cells = Key(_parts(Cells))
    changes = Key(_parts(Change))
    cut_at = Key(_number)
    untrained = Key(_texts)
    parallel = Key(_object)
    mesh = Key(_object)
    strategy = Key(_object)


class Mode(Part):
    """In which mode a network ran, from a step on; `others` are the cells of another mode."""

    step = Key(_number)
    training = Key(_any)
    others = Key(_object)


class Optimizer(Part):
    """What an optimizer is set to."""

    kind = Key(_text, "class")
    settings = Key(_object)
    changes = Key(_parts(Change))


class Generation(Part):
    """What a phase generated with: the settings of the first call, and what became of them."""

    step = Key(_number)
    settings = Key(_object)
    changes = Key(_parts(Change))


class Stopped(Part):
    """Where a run stopped that did not finish."""

    step = Key(_number)
    phase = Key(_text)
    error = Key(_text)
    text = Key(_text)


class World(Part):
    """Whose file it is: the job, the rank and the host."""

    size = Key(_number)
    scheduler = Key(_any)
    rank = Key(_number)
    host = Key(_text)


class Config(Part):
    """The msprobe_config, as far as it is read of a run without being checked."""

    ranks = Key(_numbers)
    phases = Key(_object)
    include = Key(_only_texts)
    exclude = Key(_only_texts)
    initial_step = Key(_number)


class Settings(Part):
    """What a process ran with: of the first attempt, and where a further one differs."""

    versions = Key(_section)
    device = Key(_section)
    seeds = Key(_section)
    determinism = Key(_section)
    environment = Key(_section)
    taken = Key(_text)
    taken_in = Key(_text)
    at_start = Key(_section)
    initial_weights = Key(_section)
    networks = Key(_parts(Network))
    modes = Key(_named(_parts(Mode)))
    optimizers = Key(_named(_one(Optimizer)))
    generation = Key(_named(_one(Generation)))

    @property
    def counted(self) -> dict[str, int]:
        """How many updates each optimizer had counted when this was noted, by its name."""
        counts = {name: of.settings.get(COUNTER) for name, of in self.optimizers.items()}
        return {name: count for name, count in counts.items() if type(count) is int}


#: What counts the updates of an optimizer.
COUNTER = "global_step"
#: What an update changes by itself.
CHANGED_BY_UPDATES = (COUNTER, "beta1_power", "beta2_power")


def counted_at(files: Iterable[RunFile], rank: int, step: int, role: str) -> dict[str, int]:
    """Return how many updates the optimizers of a role had counted when an attempt began.

    Args:
        step: the one that a further attempt began with.

    Returns:
        The optimizer's name → its count; empty where no further attempt began there.
    """
    return {
        name: count
        for file in files
        if (file.rank or 0) == rank
        for attempt in file.attempts[1:]
        if attempt.begins_with == step
        for name, count in attempt.counted.items()
        if name.partition(".")[0] == role
    }


def began_unlike(first: Settings, other: Settings) -> list[str]:
    """Return which of networks, modes and optimizers two attempts began with unlike each other.

    A phase or a network that the other has not come to yet says nothing, nor how far an optimizer
    had counted.
    """
    mine, theirs = _beginning(first), _beginning(other)
    unlike = [key[0] for key, value in theirs.items() if mine.get(key, value) != value]
    return [*dict.fromkeys(unlike)]


def _set_attributes(cells: Cells) -> dict[str, Any]:
    """Return the attributes of cells without what they may fill as they first run: caches."""
    known: dict[str, Any] = cells.attributes or {}
    plain = (bool, int, float, str)
    return {n: of for n, of in known.items() if not n.startswith("_") or isinstance(of, plain)}


def _beginning(content: Settings) -> dict[tuple[str, ...], Any]:
    found: dict[tuple[str, ...], Any] = {}
    for network in content.networks:
        for phase in network.phases or ():
            cells = [(of.kind, of.cells, _set_attributes(of)) for of in network.cells]
            found["networks", str(network.role), phase] = network.kind, cells
    for phase, modes in content.modes.items():
        found["modes", phase] = [(mode.training, mode.others) for mode in modes[:1]]
    for name, optimizer in content.optimizers.items():
        settings = {k: v for k, v in optimizer.settings.items() if k not in CHANGED_BY_UPDATES}
        found["optimizers", name] = optimizer.kind, settings
    return found


class Attempt(Settings):
    """One process that recorded the rank."""

    started = Key(_text)
    pid = Key(_number)
    first_step = Key(_number)
    last_completed_step = Key(_number)
    unfinished_step = Key(_number)
    begins_with = Key(_number)
    state = Key(_text)
    stopped = Key(_one(Stopped))

    @property
    def open_step(self) -> int:
        """The step after the last one that was ended, or the first of the attempt."""
        done = self.last_completed_step
        return (self.begins_with or 0) if done is None else done + 1


class Changed(Part):
    """What of a graft the run itself computes unlike that: part of a cell, in a phase and steps."""

    phase = Key(_text)
    entry = Key(_text)
    what = Key(_text)
    records = Key(_number)
    steps = Key(_numbers)


class Graft(Part):
    """What of another run was put in, in the place of this one's own; see config's `graft`."""

    run = Key(_text, "from")
    what = Key(_texts)
    entries = Key(_texts)
    put_in = Key(_number)
    changed = Key(_parts(Changed))
    left_out = Key(_objects)

    @property
    def left(self) -> int:
        """How many records were not put in."""
        return sum(_number(one.get("records")) or 0 for one in self.left_out)


def refuse_other_schema(path: Path, content: Mapping[str, Any], known: int) -> None:
    """Return if a file has the schema that this version writes.

    Raises:
        RunError: it has another one, or none.
    """
    schema = content.get("schema")
    if schema != known or isinstance(schema, bool):
        found = shortened(repr(schema))
        raise RunError.saying("error.other_schema", path=path, schema=found, known=known)


class RunFile(Settings):
    """What the manifest of one rank holds."""

    schema = Key(_any)
    tool = Key(_text)
    tool_version = Key(_any)
    run_id = Key(_text)
    state = Key(_any, always=str)
    attempts = Key(_parts(Attempt), always=list)
    world = Key(_one(World), always=dict)
    config = Key(_one(Config), always=dict)
    coverage = Key(_object, always=dict)
    lost = Key(_object, always=dict)
    lost_codes = Key(_object)
    recorded = Key(read_recorded)
    thinned = Key(read_thinned)
    others = Key(_texts)
    random_states = Key(_object)
    checkpoints = Key(_section)
    saved_checkpoints = Key(_section)
    changed_training = Key(_section)
    played = Key(_section)
    grafted = Key(_parts(Graft))
    recording = Key(_section)
    stopped = Key(_one(Stopped))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a manifest, for callers that say themselves which one could not be read.

        Raises:
            OSError, ValueError: as `layout.read_json` does, or it is not a manifest.
        """
        content = layout.read_json(path.parent, path)
        if not isinstance(content, dict):
            raise layout.UnreadError.saying("unread.no_manifest")
        return cls(content)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a manifest.

        Raises:
            RunError: it cannot be read, leaves the run's directory, is not a manifest, or has a
                schema that this version does not read.
        """
        try:
            file = cls.load(path)
        except (OSError, ValueError) as error:
            raise RunError.saying(
                "error.manifest_unread", path=path, why_unread=layout.why_unread(error)
            ) from None
        file.check_schema(path)
        return file

    def check_schema(self, path: Path) -> None:
        """Return if this version reads what a manifest says.

        Raises:
            RunError: it has another schema; of one without any the rest decides.
        """
        refuse_other_schema(path, {"schema": SCHEMA, **self.json}, SCHEMA)

    @property
    def rank(self) -> int | None:
        """Whose manifest it is, as it says; None where that cannot be a rank."""
        return self.world.rank

    @property
    def attempt(self) -> Attempt:
        """The last attempt, which says nothing where there is none."""
        return next(reversed(self.attempts), Attempt({}))

    @property
    def unread(self) -> list[str]:
        """The keys that every run has, and that this file lacks or has in another form."""
        of_every_run = ((name, key.always) for name, key in self.every_key().items() if key.always)
        names = [n for n, kind in of_every_run if not isinstance(self.json.get(n), kind)]
        return names + ["rank"] * (self.rank is None and "rank" in self.world.json)

    @property
    def reasons(self) -> dict[str, Any]:
        """What is switched on and was not recorded, with messages; see `read_coverage`."""
        return read_coverage(self.coverage)

    def note_lost(self, counts: Mapping[Message, int], before: RunFile) -> None:
        """Note how many records were lost, by kind: under its English words, and what its code is.

        Args:
            counts: of this process, so far; another thread may add to it meanwhile.
            before: what earlier attempts lost.
        """
        lost = Counter(before.counts_lost)
        codes = {**before.lost_codes}
        for kind, count in dict(counts).items():
            text = in_words(kind, "en")
            lost[text] += count
            codes[text] = kind.as_json()
        self.lost = dict(lost)
        if codes:
            self.lost_codes = codes

    @property
    def counts_lost(self) -> dict[str, int]:
        """How many records were lost, by the words of each kind, as far as that is a number."""
        return {kind: count for kind, count in self.lost.items() if isinstance(count, int)}

    @property
    def losses(self) -> list[tuple[Message, Any]]:
        """What was lost, by kind, and how many records of it."""
        codes = self.lost_codes
        kinds = {text: read_message(codes.get(text)) or as_message(text) for text in self.lost}
        return [(quoted(kinds[text]), count) for text, count in self.lost.items()]


def expected_ranks(files: Iterable[RunFile]) -> set[int]:
    """Return which ranks a job was to record, as the manifests of some of them say."""
    said = {
        (size, frozenset(file.config.ranks))
        for file in files
        if 0 < (size := file.world.size or 0) <= 1 << 20  # no job has more
    }
    return {rank for size, chosen in said for rank in chosen or range(size) if 0 <= rank < size}


RUNNING = "running"
FINISHED = "finished"
FAILED = "failed"
#: The process ended inside a step, without close() and without an exception that was seen.
INTERRUPTED = "interrupted"
#: What a run that says `running` is when nobody holds its lock.
KILLED = "killed"

_MOST_NAME = 200  # characters of a name that a file gives


@dataclass(frozen=True)
class Stop:
    """Where one rank of a run stopped.

    Attributes:
        rank: which.
        state: failed, interrupted, killed, or running: it has not stopped yet.
        step: the step that was open.
        phase: the phase that was open, or through which the exception passed; None if none was, or
            it is not known.
        error: the exception's type, None without one or where it is not known.
        text: its text, shortened.
    """

    state: str
    step: int
    phase: str | None = None
    error: str | None = None
    text: str = ""
    rank: int = 0

    def noted(self) -> Stopped:
        """Return it as it stands in run.json, under `stopped`."""
        return Stopped.make(step=self.step, phase=self.phase, error=self.error, text=self.text)


def stop_of(file: RunFile, *, held: bool) -> Stop | None:
    """Return where the rank of a manifest stopped; None if it finished, or says nothing of it.

    Args:
        held: whether a process still records it.
    """
    state = KILLED if file.state == RUNNING and not held else file.state
    attempt, stopped = file.attempt, file.attempt.stopped
    if state not in (RUNNING, KILLED, FAILED, INTERRUPTED) or not attempt.json:
        return None  # or nothing tells where
    steps = (stopped.step, attempt.unfinished_step, attempt.open_step)
    return Stop(
        state=state,
        step=next(step for step in steps if step is not None),
        phase=(stopped.phase or "")[:_MOST_NAME] or None,
        error=(stopped.error or "")[:_MOST_NAME] or None,
        text=(stopped.text or "")[:1000],
        rank=file.rank or 0,
    )
