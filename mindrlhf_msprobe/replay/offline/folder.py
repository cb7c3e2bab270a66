"""The folder of one entry: entry.json and tensors of one run or of two, and the script."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.printable import printable, shortened
from mindrlhf_msprobe.errors import MsprobeError, RunError, UsageError
from mindrlhf_msprobe.replay.offline.recorded_call import RecordedCall
from mindrlhf_msprobe.storage.arrays.atomic import write_atomic
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError, save_npy
from mindrlhf_msprobe.storage.leaves import Leaf, child_path, is_leaf, leaf_from_json
from mindrlhf_msprobe.storage.records import Record

SCRIPT, WORDS, NETWORK = "replay.py", "words.json", "network.yaml"
#: The folders of both runs.
SIDES = ("a", "b")
ENTRY = "entry.json"
#: The dtypes that a tensor, or an argument, may have.
DTYPES = (
    *("Bool", "Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64"),
    *("Float16", "BFloat16", "Float32", "Float64", "Complex64", "Complex128"),
)
FLOATING = ("Float16", "BFloat16", "Float32", "Float64")
#: What the script computes: their labels stand in its table.
_RUNS = ("again", "Float32", "Float64", "formula")
_NETWORK = "the network whose cell is called"
_SUBJECT = re.compile(r"^# subject: begin\n.*?^# subject: end\n", re.DOTALL | re.MULTILINE)
#: A part of the script that not every entry needs; with the empty lines behind it.
_PART = re.compile(r"^ *# network: begin\n(?:.*\n)*? *# network: end\n(?:\n)*", re.MULTILINE)
_MARK = re.compile(r"^ *# network: begin\n|^\n* *# network: end\n", re.MULTILINE)
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")
_LONGEST_LINE = 1000  # characters of a script
_LONGEST_FILE = 80  # characters of a file's name
#: Texts that an operator may be given: a mode, an equation; never a path.
_TEXT = re.compile(r"[\w ,.>()*+-]{0,100}")
_MOST_DRAWN = 1 << 27  # elements of a tensor
#: Makes the elements of a tensor of which there are statistics alone; None: it is an error.
Draw = Callable[[Leaf], np.ndarray]


def write_folder(
    output: Path,
    calls: list[RecordedCall],
    subject: str,
    words: Mapping[str, str],
    *,
    network: bool = True,
    **also: Any,
) -> None:
    """Write the folder of a call, of one run or of both.

    Args:
        output: an empty folder; see `staged`.
        subject: Python that defines `subject()`; made of nothing that stands in a dump.
        words: the texts of the script.
        network: whether the subject is a network; else it is an operator.
        also: what else stands in entry.json.

    Raises:
        RunError: a tensor was recorded without its elements, or cannot be read; the folder
            cannot be written.
        UsageError: an argument cannot be made again.
    """
    with _written(output):
        for call, side in zip(calls, SIDES):
            title = printable(words["title"].format(side=side.upper(), **_place(call)))
            write_side(output / side, call, title=title, **also)
        _write(output / WORDS, json.dumps(words, ensure_ascii=False, indent=1))
        _write(output / SCRIPT, script_of(subject, network=network))


def script_of(subject: str, *, network: bool = True) -> str:
    """Return the script with its `subject()`, and with those parts alone that its entry needs.

    Args:
        network: whether the subject is a network; else it is an operator.
    """
    script = Path(__file__).with_name("template.py").read_text(encoding="utf-8")
    script = _MARK.sub("", script if network else _PART.sub("", script))
    return _SUBJECT.sub(lambda _: f"{subject}\n\n", script)


def write_side(folder: Path, call: RecordedCall, *, draw: Draw | None = None, **also: Any) -> None:
    """Write entry.json and the tensors of a call into a folder.

    Raises:
        OSError, RunError, UsageError: as for `write_folder`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    content = {**_Written(folder, call, draw).content(), **also}
    _write(folder / ENTRY, json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False))


def _place(call: RecordedCall) -> dict[str, Any]:
    entry = call.entry
    place = {"entry": entry.name, "phase": entry.phase, "step": entry.step, "rank": entry.rank}
    return {**place, "run": str(call.run.path)}


def _write(path: Path, text: str) -> None:
    write_atomic(path, [text.encode("utf-8", errors="backslashreplace")])


class _Written:
    """One call, as it is written."""

    def __init__(self, folder: Path, call: RecordedCall, draw: Draw | None) -> None:
        self._folder, self._call, self._draw = folder, call, draw
        self._files: set[str] = set()

    def content(self) -> dict[str, Any]:
        """Return what entry.json holds, and write the tensors."""
        call = self._call
        entry, values, backward = call.entry, call.forward.values, call.backward
        args, kwargs = (values.get(part) for part in ("input_args", "input_kwargs"))
        if args is None and kwargs is None:
            raise RunError.saying("replay.no_inputs", entry=shortened(entry.name))
        parameters = self._parameters()
        args = [self._node("input", item, str(i)) for i, item in _listed(args)]
        named = {
            str(name): self._node("input", item, child_path("", name))
            for name, item in (kwargs.items() if isinstance(kwargs, dict) else ())
        }
        returned = [self._node("output", item, str(i)) for i, item in _listed(values.get("output"))]
        given, outputs = tensors_in([*args, *named.values()]), tensors_in(returned)
        recorded = {node["at"]: node for node in outputs}
        for node in (*given, *parameters):
            if "gradient" in node:
                recorded[f"gradient:{node['at']}"] = node["gradient"]
        operator, attributes, primitive, modes = call.operator, None, None, {}
        mode = call.run.mode(entry.phase, entry.step, entry.rank)
        if mode is not None and operator is None:
            modes = {"root": mode.training, **mode.others}
        if operator is not None and operator.kind == "Primitive":
            primitive = operator.name.rpartition(".")[0]  # what the cell around calls it
        if call.attributes is not None:
            attributes = {n: _attribute_node(value, n) for n, value in call.attributes.items()}
        return {
            **_place(call),
            "cell": entry.cell,
            "class": entry.class_name or entry.cell.rpartition(".")[2],
            "inside": dict(call.inside),
            # The cells whose mode is not that of the cell around, the network itself first.
            "modes": [(cell, bool(training)) for cell, training in modes.items()],
            "repeated": backward is not None and backward.recomputed != "",
            **{"around": entry.around, "primitive": primitive, "recomputed": call.unlike},
            "attributes": attributes,
            **{"args": args, "kwargs": named, "output": returned, "parameters": parameters},
            "given": given,
            "inputs": [node for node in given if node["dtype"] in FLOATING and not node["numpy"]],
            **{"outputs": outputs, "recorded": recorded},
        }

    def _parameters(self) -> list[dict[str, Any]]:
        """Write the parameters, and return what stands for them."""
        found = []
        for known in self._call.parameters:
            name = known.network_name
            node = self._tensor(known.record, f"parameter.{name}")
            node |= {"cell": known.cell, "name": known.name, "at": printable(name)}
            if known.gradient is not None and node["dtype"] in FLOATING:
                node["gradient"] = self._tensor(known.gradient, f"gradient.{name}")
            found.append(node)
        return found

    def _node(self, io: str, content: Any, path: str) -> dict[str, Any]:
        """Return what stands in entry.json for a structure of leaves."""
        if content is None:
            return {"value": None}
        if isinstance(content, dict) and not is_leaf(content):
            named = [(str(name), child_path(path, name), item) for name, item in content.items()]
            return {"dict": {n: self._node(io, item, at) for n, at, item in named}}
        if isinstance(content, list):
            items = [(child_path(path, i), item) for i, item in enumerate(content)]
            return {"list": [self._node(io, item, at) for at, item in items]}
        leaf = leaf_from_json(content)
        if not leaf.is_tensor:
            return {"value": None} if io == "output" else self._plain(leaf, path)
        record = self._call.forward.records.get((io, path))
        if record is None:  # more values than an entry may hold
            raise UsageError.saying("replay.argument", argument=path, kind=leaf.type)
        name = f"{io}.{path}"
        node = {**self._tensor(record, name), "at": printable(name)}
        node["numpy"] = leaf.type == "numpy.ndarray"
        gradients = {} if self._call.backward is None else self._call.backward.records
        beside = gradients.get(("output" if io == "input" else "input", path))
        if beside is None or node["dtype"] not in FLOATING:
            return node
        known = beside.location is not None or self._draw is not None
        fits = beside.leaf.shape == leaf.shape and beside.leaf.dtype in FLOATING
        if known and fits and not beside.leaf.whole:  # the gradient of this value alone
            what = "gradient" if io == "input" else "arriving"
            node[what] = self._tensor(beside, f"gradient.{name}")
        return node

    def _plain(self, leaf: Leaf, path: str) -> dict[str, Any]:
        """Return what stands for a value that is no tensor."""
        value, kind = leaf.value, leaf.type
        node: dict[str, Any] | None = None
        if kind == "NoneType":
            node = {"value": None}
        elif kind.rpartition(".")[2].lower() == "ellipsis":
            node = {"ellipsis": True}
        elif "dtype" in kind or "typing" in kind:
            name = str(value).rpartition(".")[2].lower()
            node = next(({"dtype": dtype} for dtype in DTYPES if dtype.lower() == name), None)
        elif kind == "slice" and isinstance(value, list):
            if len(value) == 3 and all(item is None or type(item) is int for item in value):
                node = {"slice": value}
        elif isinstance(value, list):
            if all(type(item) in (bool, int, float) for item in value):
                node = {"list": [{"value": item} for item in value]}
        elif kind == "str" and isinstance(value, str) and _TEXT.fullmatch(value):
            node = {"value": value}
        elif isinstance(value, (bool, int, float)) and not leaf.opaque:
            finite = not isinstance(value, float) or math.isfinite(value)
            node = {"value": value} if finite else {"number": str(value)}
        if node is None:
            raise UsageError.saying("replay.argument", argument=path, kind=shortened(kind))
        return node

    def _tensor(self, record: Record, name: str) -> dict[str, Any]:
        """Write a tensor; return what stands for it."""
        leaf, operator = record.leaf, self._call.operator
        if leaf.dtype not in DTYPES:
            raise UsageError.saying("replay.argument", argument=name, kind=shortened(leaf.dtype))
        try:
            if record.location is None and leaf.why is None:
                if self._draw is None:
                    entry, shown = self._call.entry, shortened(record.name)
                    place = {"phase": entry.phase, "step": entry.step, "operator": operator}
                    raise RunError.saying("replay.no_elements", record=shown, **place)
                array = self._draw(leaf)
            else:
                array = record.array()
            # A name that no other has, and that leads nowhere else.
            stem = _UNSAFE.sub("_", name).strip(".")[:_LONGEST_FILE] or "tensor"
            names = (f"{stem}.{n}.npy" if n > 1 else f"{stem}.npy" for n in itertools.count(1))
            file = next(name for name in names if name.lower() not in self._files)
            self._files.add(file.lower())
            save_npy(self._folder / file, array)
        except ArrayFileError as error:
            name = shortened(record.name)
            raise RunError.saying("error.unread", path=name, why=error.said) from None
        node = {"file": file, "dtype": leaf.dtype, "shape": list(leaf.shape or ())}
        # A gradient that is the difference of two: by how much an element may be off.
        return node if leaf.rounding is None else {**node, "rounding": leaf.rounding}


def leaves_in(nodes: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield what stands in the structures of entry.json, in order."""
    for node in nodes:
        if "list" in node or "dict" in node:
            yield from leaves_in([*node.get("list", ()), *node.get("dict", {}).values()])
        else:
            yield node


def tensors_in(nodes: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tensors among values, and in them."""
    return [node for node in leaves_in(nodes) if "file" in node]


def _attribute_node(value: Any, name: str) -> dict[str, Any]:
    """Return what stands in entry.json for an attribute of a primitive.

    Raises:
        UsageError: it is no text or dtype that a primitive may be given.
    """
    if isinstance(value, list):
        return {"list": [_attribute_node(item, name) for item in value]}
    if isinstance(value, dict) and value["dtype"] in DTYPES:
        return {"dtype": value["dtype"]}
    if isinstance(value, dict) or (isinstance(value, str) and not _TEXT.fullmatch(value)):
        raise UsageError.saying("replay.argument", argument=shortened(name), kind="str")
    return {"value": value}


def _listed(content: Any) -> Iterator[tuple[int, Any]]:
    return enumerate(content if isinstance(content, list) else [] if content is None else [content])


def drawn(seed: int) -> Draw:
    """Return what draws the elements of tensors between the recorded minimum and maximum."""
    random = np.random.default_rng(seed)

    def draw(leaf: Leaf) -> np.ndarray:
        least, most = (v if isinstance(v, (int, float)) else 0 for v in (leaf.min, leaf.max))
        with suppress(ValueError, OverflowError):
            kind: Any = (leaf.dtype or "").lower().replace("bfloat16", "float32")
            if math.prod(leaf.shape or ()) > _MOST_DRAWN:
                raise ValueError
            if kind == "bool":
                return random.random(leaf.shape or ()) < 0.5
            if leaf.is_integer:
                return random.integers(int(least), int(most), leaf.shape, kind, endpoint=True)
            return np.asarray(random.uniform(least, most, leaf.shape), kind)
        raise ArrayFileError.saying("unread.statistics_alone")

    return draw


def subject_of_network(network: str) -> tuple[str, Path | None]:
    """Return the Python of `subject()` for a cell, and the YAML that goes with it, if one does.

    Args:
        network: `module:factory`, or the path of a MindFormers YAML.

    Raises:
        UsageError: it is neither.
    """
    if network.endswith((".yaml", ".yml")):
        path = Path(network)
        if not path.is_file():
            raise UsageError.saying("replay.no_yaml", path=network)
        of_yaml = 'str(HERE / "network.yaml"), download_checkpoint=False'
        imported = "from mindformers import AutoModel"
        return _subject(_NETWORK, imported, f"None, AutoModel.from_config({of_yaml})"), path
    module, colon, factory = network.partition(":")
    if not (colon and factory.isidentifier() and all(p.isidentifier() for p in module.split("."))):
        raise UsageError.saying("replay.network", network=repr(network))
    imported = f"from {module} import {factory}"
    return _subject(_NETWORK, imported, f"None, {factory}()"), None


def subject_of_operator(home: str, attribute: str) -> str:
    """Return the Python of `subject()` for an operator of the installed MindSpore."""
    module = home.removesuffix(".Tensor")
    return _subject("the operator", f"import {module}", f"{home}.{attribute}, None")


def subject_of_primitive(kind: type, attributes: Mapping[str, bool | int] | None) -> str:
    """Return the Python of `subject()` for a primitive of the installed MindSpore.

    Args:
        attributes: what it is made with; None: what was recorded of each run.
    """
    imported = f"from {kind.__module__} import {kind.__name__}"
    if attributes is None:
        what = "the class of the primitive; its attributes stand in entry.json"
        return _subject(what, imported, f"{kind.__name__}, None")
    given = ", ".join(f"{name}={value!r}" for name, value in attributes.items())
    what = "the primitive; its attributes follow from what was recorded"
    return _subject(what, imported, f"{kind.__name__}({given}), None")


def _subject(what: str, imported: str, returned: str) -> str:
    """Return the Python of `subject()`, given what it returns, in words and as Python."""
    head = f'def subject() -> tuple[Any, Any]:\n    """Return {what}."""\n    {imported}\n'
    return f"{head}\n    return {returned}\n"


def words_of(lang: str) -> dict[str, str]:
    """Return the texts of the script in a language; those before numbers as wide as each other."""
    texts = import_module("mindrlhf_msprobe.report.messages").texts_in(lang, "replay_script")
    for run in _RUNS:
        wide = sum(ord(letter) > 0x2E7F for letter in texts[run])  # two columns each
        texts = {**texts, run: f"    {texts[run]:{26 - wide}}"}
    return texts


class ScriptError(RunError):
    """A script that failed: its folder stays, so that it can be run by itself."""


@contextmanager
def staged(output: Path) -> Iterator[Path]:
    """Yield an empty folder, whose files are moved to `output` at the end.

    If it ends by an error of this tool other than `ScriptError`, `output` stays as it was.

    Raises:
        RunError: `output` holds something else than a replay, or cannot be written.
    """
    with _written(output):
        held = {path.name for path in output.iterdir()} if output.exists() else set()
        is_ours = False  # whether what it holds is a script that was written here
        if (output / SCRIPT).is_file():
            template = Path(__file__).with_name("template.py")
            with open(output / SCRIPT, "rb") as own, open(template, "rb") as file:
                is_ours = own.readline(_LONGEST_LINE) == file.readline()
        if held and not is_ours:
            raise RunError.saying("replay.other_folder", path=str(output), held=min(held))
        around = next(path for path in (output, *output.absolute().parents) if path.exists())
        made = Path(tempfile.mkdtemp(prefix=".replay-", dir=around))
    try:
        yield made
    except MsprobeError as error:
        if isinstance(error, ScriptError):
            _move(made, output)
        raise
    except Exception:
        _move(made, output)
        raise
    else:
        _move(made, output)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _move(made: Path, output: Path) -> None:
    """Move the files of a folder to where they belong; what an earlier replay wrote there goes."""
    with _written(output):
        output.mkdir(parents=True, exist_ok=True)
        for side in SIDES:
            for path in (output / side).glob("*.npy"):
                path.unlink()
        if not (made / SIDES[1]).exists() and (output / SIDES[1] / ENTRY).exists():
            (output / SIDES[1] / ENTRY).unlink()
            with suppress(OSError):  # it holds something of the user's
                (output / SIDES[1]).rmdir()
        for path in sorted(made.rglob("*")):
            place = output / path.relative_to(made)
            if path.is_dir():
                place.mkdir(exist_ok=True)
            else:
                os.replace(path, place)


@contextmanager
def _written(output: Path) -> Iterator[None]:
    """Say of an error of the system that `output` cannot be written."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise RunError.saying("error.file_unwritten", path=str(output), why=why) from None
