"""msprobe's dump.json and construct.json as journal lines."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.common.printable import shortened
from mindrlhf_msprobe.phases import phase_order
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.foreign.dialect import MSPROBE, OWN, Dialect, Dump
from mindrlhf_msprobe.storage.journal_line import PARTS, JournalLine, holds_gradients
from mindrlhf_msprobe.storage.operators import is_operator
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, Entry, cell_name

#: Key data may name no framework.
_FRAMEWORKS = ("mindspore", "pytorch", "mindtorch", "msadapter", "unknown")
#: MSAdapter: PyTorch's interface on MindSpore, with PyTorch's names.
_MSADAPTER = ("mindtorch", "msadapter")
_OF_MSADAPTER = {"mindspore.Tensor": "torch.Tensor", "mindspore.dtype": "torch.dtype"}
_UNNUMBERED = f".{PARAMETERS_GRAD}"
_AFTER_SPACE = tuple("-+=%@")
_PHASE_SPAN = 1 << 40  # more places in time than one phase's dump can hold entries


def read_dump(root: Path, directory: Path, position: float) -> Dump:
    """Read a dump's entries as journal lines, with the places in time msprobe does not record.

    construct.json names each entry's container and lists entries as they began; what it lacks
    (parameters_grad) stands where dump.json has it. msprobe before 26 gives a cell's
    parameters_grad no number and lists it behind the cell's forward entry, before it is filled: it
    is numbered 0, as later versions do, and stands behind the cell's last backward entry.

    Args:
        root: the run's directory, which no file may leave.
        directory: holds dump.json.
        position: the phase's usual position in a step, because phases carry no time either.

    Raises:
        ValueError: dump.json cannot be read or is not one; the message names it.
    """
    data = _entries(root, directory)
    construct, stacks, unreadable = _beside(root, directory)
    parents = {
        name: parent if isinstance(parent, str) and parent in data else None
        for name, raw in construct.items()
        if name in data
        for parent in [raw[0] if isinstance(raw, list) and raw else raw]
    }
    data = _numbered(data)
    start, end = _places(list(data), parents)
    base = int(position * _PHASE_SPAN)
    lines = [
        JournalLine(
            name,
            base + start[name],
            base + end[name],
            parents.get(name),
            values={PARAMETERS_GRAD: values} if holds_gradients(name) else values,
            frames=tuple(stacks.get(name, ())),
            # msprobe knows no outermost cell: what ran in no other one may have run in that.
            around=cell_name(of) if (of := parents.get(name)) and is_operator(name) else None,
        )
        for name, values in data.items()
    ]
    return Dump(lines, unreadable, _dialect(lines).name)


def _entries(root: Path, directory: Path) -> dict[str, dict[str, Any]]:
    """Return the entries of dump.json by name.

    Raises:
        ValueError: it cannot be read or is not one; the message names it.
    """
    try:
        content = _read_object(root, directory / layout.DUMP_FILE)
    except FileNotFoundError:
        raise _of_file(layout.DUMP_FILE, message("unread.missing")) from None
    framework, data = content.get("framework"), content.get("data")
    kind = str(framework).lower()
    if framework is not None and kind not in _FRAMEWORKS:
        known = ", ".join(_FRAMEWORKS[:-1])
        why = message("unread.framework", name=shortened(framework), known=known)
        raise _of_file(layout.DUMP_FILE, why)
    if not isinstance(data, dict) or not all(isinstance(v, dict) for v in data.values()):
        raise layout.UnreadError.saying("unread.no_entries", file=layout.DUMP_FILE)
    parts = [name for entry, of in data.items() if not holds_gradients(entry) for name in of]
    if parts and not {*PARTS} & {*parts}:  # no entry has a part that is known
        found = ", ".join(shortened(name) for name in [*dict.fromkeys(parts)][:4])
        why = message("unread.other_form", found=found, known=", ".join(PARTS))
        raise _of_file(layout.DUMP_FILE, why)
    if kind in _MSADAPTER:
        return {name: _of_torch(values) for name, values in data.items()}
    return data


def _of_torch(content: Any) -> Any:
    """Return values of MSAdapter as those of PyTorch, which its tensors are to whoever uses it."""
    if isinstance(content, list):
        return [_of_torch(item) for item in content]
    if not isinstance(content, dict):
        return content
    found = {name: _of_torch(item) for name, item in content.items()}
    kind = found.get("type")
    return {**found, "type": _OF_MSADAPTER.get(kind, kind)} if isinstance(kind, str) else found


def _dialect(lines: Iterable[JournalLine]) -> Dialect:
    """Return whose a dump is: in this package's dump.json each tensor says how many are NaN."""
    for line in lines:
        with suppress(ValueError):
            for *_, leaf in line.records():
                if leaf.is_tensor:
                    return MSPROBE if leaf.nan_count is None else OWN
    return MSPROBE


def in_usual_order(entry: Entry) -> Entry:
    """Return an entry with a place in time among those of phases of which none is known."""
    base = int(phase_order(entry.phase) * _PHASE_SPAN)
    end = None if entry.end is None else base + entry.end
    return replace(entry, seq=base + entry.seq, end=end)


def with_changed_texts(content: Any) -> Any:
    """Return values of a dump.json of ours whose texts may be other ones marked as unreadable.

    Before some texts stands a space there, which msprobe's tools need.
    """
    if isinstance(content, list):
        return [*map(with_changed_texts, content)]
    if not isinstance(content, dict):
        return content
    value = content.get("value")
    if isinstance(value, str) and value[:1] == " " and value[1:2] in _AFTER_SPACE:
        why = message("unread.first_space", file=layout.DUMP_FILE)
        return {**content, "error": why.as_json()}
    return {name: with_changed_texts(item) for name, item in content.items()}


def _numbered(data: dict[str, Any]) -> dict[str, Any]:
    """Return a dump's entries with each unnumbered parameters_grad numbered and where it belongs.

    That is behind the cell's last backward entry, at the end where it has none.
    """
    last_backward = {
        name.rpartition(".backward.")[0]: name for name in data if ".backward." in name
    }
    late: dict[str | None, list[str]] = {}
    for name in data:
        if name.endswith(_UNNUMBERED) and f"{name}.0" not in data:
            late.setdefault(last_backward.get(name.removesuffix(_UNNUMBERED)), []).append(name)
    moved = {name for names in late.values() for name in names}
    ordered = []
    for name in data:
        if name not in moved:
            ordered += [name, *late.get(name, ())]
    ordered += late.get(None, ())
    return {f"{name}.0" if name in moved else name: data[name] for name in ordered}


def _read_object(root: Path, path: Path) -> dict[str, Any]:
    try:
        content = layout.read_json(root, path, bounds.DATA)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise _of_file(path.name, layout.why_unread(error)) from None
    if not isinstance(content, dict):
        raise _of_file(path.name, message("unread.no_object"))
    return content


def _of_file(file: str, why: Message) -> layout.UnreadError:
    return layout.UnreadError.saying("unread.of_file", file=file, why=why)


def _beside(
    root: Path, directory: Path
) -> tuple[dict[str, Any], dict[str, list[str]], list[tuple[Path, Message]]]:
    """Return construct.json and the call stacks as far as they are there, and what is unreadable.

    msprobe does not write them for every dump.
    """
    found: list[dict[str, Any]] = []
    unreadable: list[tuple[Path, Message]] = []
    for name, read in ((layout.CONSTRUCT_FILE, dict), (layout.STACK_FILE, _stacks)):
        content: dict[str, Any] = {}
        try:
            content = read(_read_object(root, directory / name))
        except FileNotFoundError:
            pass
        except ValueError as error:
            why = layout.why_unread(error)
            unreadable.append((directory / name, why.params.get("why", why)))
        found.append(content)
    construct, stacks = found
    return construct, stacks, unreadable


def _stacks(content: dict[str, Any]) -> dict[str, list[str]]:
    """Return entry → call stack of a stack.json.

    Raises:
        ValueError: it has another form.
    """
    found: dict[str, list[str]] = {}
    for value in content.values():
        names, frames = value if isinstance(value, list) and len(value) == 2 else (None, None)
        if not (isinstance(names, list) and isinstance(frames, list)):
            raise _of_file(layout.STACK_FILE, message("unread.no_stacks"))
        shown = [str(frame) for frame in frames[: bounds.FRAMES]]
        found.update(dict.fromkeys((str(name) for name in names), shown))
    return found


def _places(
    names: list[str], parents: dict[str, str | None]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return when each entry began and ended: a container around its children."""
    children: dict[str | None, list[str]] = {}
    for name, parent in parents.items():
        children.setdefault(parent, []).append(name)
    events: list[tuple[str, bool]] = []  # the begin (True) and end of each entry in turn
    seen: set[str] = set()
    pending = [(root, True) for root in reversed(children.get(None, []))]
    while pending:
        name, begins = pending.pop()
        events.append((name, begins))
        if begins:
            seen.add(name)
            pending.append((name, False))
            pending += [(c, True) for c in reversed(children.get(name, [])) if c not in seen]
    after = {name: place for place, (name, begins) in enumerate(events) if not begins}
    place, late = -1, []
    for name in names:
        place = after.get(name, place)
        if name not in seen:
            late += [(place, (name, True)), (place, (name, False))]
    in_time = sorted([*enumerate(events), *late], key=itemgetter(0))
    ordered = [event for _, event in in_time]
    start = {name: place for place, (name, begins) in enumerate(ordered) if begins}
    end = {name: place for place, (name, begins) in enumerate(ordered) if not begins}
    return start, end
