"""Compute one recorded entry of a training again, and print how far the record is from it.

    python replay.py [--device CPU|GPU|Ascend] [--json FILE]

Needs MindSpore and numpy; for a cell also what builds its network. In a/ (b/ of a second run) lie
the recorded tensors (.npy; bfloat16 as float32) and entry.json: what they are, and what was judged.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
WORDS = json.loads((HERE / "words.json").read_text("utf-8")) if __name__ == "__main__" else {}
try:
    import mindspore
    import numpy as np
    from mindspore import Tensor
except (ImportError, OSError) as error:
    sys.exit(WORDS.get("no_mindspore", "{error}").format(error=error))

BITS = {"BFloat16": 7, "Float16": 10, "Float32": 23, "Float64": 52}  # of the mantissa


# subject: begin
def subject() -> tuple[Any, Any]:
    """Return what is called, and None; or None, and the network whose cell is called."""
    raise NotImplementedError


# subject: end
# network: begin
def refuse(code: str, **params: Any) -> None:
    """End, and say why the entry cannot be computed; names of a dump cannot move the cursor."""
    text = WORDS[code].format(**params)
    sys.exit("".join(letter if letter.isprintable() else "?" for letter in text))


# network: end
def at_least(dtype: str, least: str | None) -> str:
    """Return a dtype, or `least` where that is a floating one with more bits."""
    return least if least and dtype in BITS and BITS[dtype] < BITS[least] else dtype


def tensor_of(array: Any, dtype: str) -> Any:
    """Return a tensor of a dtype; bfloat16 comes as float32 or float64."""
    stored = "float32" if dtype == "BFloat16" else dtype.lower()
    tensor = Tensor(np.ascontiguousarray(array).reshape(array.shape).astype(stored))
    return tensor.astype(mindspore.bfloat16) if dtype == "BFloat16" else tensor


class Side:
    """What was recorded in one run; `called` is the operator, None for what the network holds."""

    def __init__(self, folder: Path, called: Any, network: Any) -> None:
        self.folder, self.network = folder, network
        self.entry = entry = json.loads((folder / "entry.json").read_text(encoding="utf-8"))
        self.sequence: type = list if entry.get("lists") else tuple
        self.inputs, self.outputs = entry["inputs"], entry["outputs"]
        self.weights = entry["parameters"]
        # network: begin
        called = self.found() if called is None else called
        # network: end
        if isinstance(called, type) and entry["attributes"] is not None:  # of a primitive
            called = called(**self.value({"dict": entry["attributes"]}, {}))
        self.called = called

    # network: begin
    def found(self) -> Any:
        """Return what was recorded, in the network that was built; refuse another network."""
        called: Any
        entry, network, attribute = self.entry, self.network, self.entry["primitive"]
        if not isinstance(network, mindspore.nn.Cell):
            refuse("no_network", kind=type(network).__name__)
        cells = {name or "root": cell for name, cell in network.cells_and_names()}
        for name, training in entry.get("modes", ()):  # those around come first
            if name in cells:
                cells[name].set_train(training)
        at = entry["cell"] if attribute is None else entry["around"]
        if at not in cells:
            refuse("no_cell", cell=at, network=type(network).__name__)
        called = cells[at] if attribute is None else getattr(cells[at], attribute, None)
        cells[shown := ".".join(filter(None, (at, attribute)))] = called
        for name, kind in {shown: entry["class"], **entry.get("inside", {})}.items():
            if name in cells and kind != (built := type(cells[name]).__name__):
                refuse("other_class", cell=name, recorded=kind, built=built)
        self.find_weights(cells)
        known = {id(node["parameter"]) for node in self.weights}
        own = called.get_parameters() if attribute is None else ()
        if left := [parameter.name for parameter in own if id(parameter) not in known]:
            refuse("not_recorded", parameter=left[0], count=len(left))
        return called

    def find_weights(self, cells: dict[str, Any]) -> None:
        """Find the parameters that were recorded; refuse those of other shapes."""
        for node in self.weights:
            held = cells.get(node["cell"]) or mindspore.nn.Cell()
            node["parameter"] = dict(held.parameters_and_names(expand=False)).get(node["name"])
            if node["parameter"] is None:
                refuse("no_parameter", parameter=node["at"])
            shapes = {"recorded": tuple(node["shape"]), "built": node["parameter"].shape}
            if shapes["recorded"] != shapes["built"]:
                refuse("other_shape", parameter=node["at"], **shapes)

    def cast_up(self, least: str | None) -> None:
        """Follow no casts below a dtype from here on, and cast up what cells hold."""
        if least is None:
            return
        low = [text for name in BITS if BITS[name] < BITS[least] for text in (name, name.lower())]
        wanted = getattr(mindspore, least.lower())

        def raised(value: Any) -> Any:
            return (
                wanted if isinstance(value, (str, mindspore.Type)) and str(value) in low else value
            )

        def cast(original: Any) -> Any:
            return lambda *args, **kwargs: original(
                *map(raised, args), **{name: raised(value) for name, value in kwargs.items()}
            )

        casts = [(mindspore.ops.Cast, "__call__"), (mindspore.ops, "cast"), (Tensor, "astype")]
        for owner, name in [*casts, (Tensor, "to"), (Tensor, "type")]:
            setattr(owner, name, cast(getattr(owner, name)))
        for name in ("half", "bfloat16", "float"):
            setattr(Tensor, name, lambda tensor: tensor.astype(wanted))
        check, single = mindspore._checkparam.check_type_name, mindspore.float32
        mindspore._checkparam.check_type_name = (  # which MindFormers asks about inputs
            lambda name, dtype, *args: check(name, single if dtype == wanted else dtype, *args)
        )
        for _, cell in self.network.cells_and_names():
            cell.mixed_precision_type = None  # to_float
            for name, value in [*vars(cell).items()]:
                if type(value) is Tensor:
                    setattr(cell, name, value.astype(raised(value.dtype)))

    # network: end
    def array(self, node: dict[str, Any]) -> Any:
        """Return the elements of a recorded tensor."""
        return np.load(self.folder / node["file"], allow_pickle=False)

    def value(self, node: dict[str, Any], given: dict[str, Any], least: str | None = None) -> Any:
        """Return what an argument is, its floating tensors taken from `given`."""
        if "file" in node:
            if node["at"] in given:
                return given[node["at"]]
            return self.array(node) if node["numpy"] else tensor_of(self.array(node), node["dtype"])
        if "list" in node:
            return self.sequence(self.value(item, given, least) for item in node["list"])
        if "dict" in node:
            return {name: self.value(item, given, least) for name, item in node["dict"].items()}
        if "dtype" in node:
            return getattr(mindspore, at_least(node["dtype"], least).lower())
        if "slice" in node or "number" in node:  # a number that JSON has not
            return slice(*node["slice"]) if "slice" in node else float(node["number"])
        return ... if "ellipsis" in node else node["value"]

    def call(self, given: Any, least: str | None) -> dict[str, Any]:
        """Return name → tensor of what is returned for these inputs."""
        entry, known = self.entry, {node["at"]: one for node, one in zip(self.inputs, given)}
        args = [self.value(node, known, least) for node in entry["args"]]
        returned = self.called(*args, **self.value({"dict": entry["kwargs"]}, known, least))
        several = isinstance(returned, tuple) and len(returned) == len(entry["output"])
        return named(entry["output"], returned if several else [returned])

    def compute(self, least: str | None = None) -> dict[str, Any]:
        """Return name → tensor of what comes out; no floating value is below the dtype `least`."""

        def made(node: dict[str, Any]) -> Any:
            return tensor_of(self.array(node), at_least(node["dtype"], least))

        # network: begin
        self.cast_up(least)
        for node in self.weights:
            value = made(node)
            node["parameter"].set_dtype(value.dtype)
            node["parameter"].set_data(value)
        # network: end
        found: dict[str, Any] = {}
        arriving = {n["at"]: made(n["arriving"]) for n in self.outputs if "arriving" in n}
        weights = [node for node in self.weights if "gradient" in node]

        def forward(*given: Any) -> Any:
            found.update(self.call(given, least))
            # So the gradient at each output is the recorded one, exactly.
            products = [(found[at] * arriving[at]).sum() for at in arriving if at in found]
            return sum(products[1:], products[0]) if products else Tensor(0.0)

        inputs = [made(node) for node in self.inputs]
        if not arriving or not (inputs or weights):
            return self.call(inputs, least)
        positions, parameters = tuple(range(len(inputs))), [node["parameter"] for node in weights]
        found_all = mindspore.grad(forward, positions or None, parameters or None)(*inputs)
        gradients = found_all if isinstance(found_all, tuple) else (found_all,)
        # network: begin
        gradients = flat(gradients)
        # network: end
        names = [f"gradient:{node['at']}" for node in (*self.inputs, *weights)]
        return {**found, **dict(zip(names, gradients))}


# network: begin
def flat(found: Any) -> tuple[Any, ...]:
    """Return the gradients that lie in tuples: of inputs, and of weights."""
    nested = isinstance(found, tuple)
    return tuple(inside for one in found for inside in flat(one)) if nested else (found,)


# network: end
def named(nodes: Any, values: Any) -> dict[str, Any]:
    """Return name → tensor of what was returned, as it was recorded."""
    found = {}
    for node, value in zip(nodes, values):
        if "file" in node:
            found[node["at"]] = value if isinstance(value, Tensor) else Tensor(value)
        get = value.__getitem__ if isinstance(value, dict) else value.__getattribute__
        found |= named(node.get("list", ()), value if "list" in node else ())
        found |= named(node.get("dict", {}).values(), map(get, node.get("dict", {})))
    return found


def distance(recorded: Any, found: Any, dtype: str) -> dict[str, float]:
    """Return how far two arrays are apart; an element has at least the ulp of their mean size."""
    with np.errstate(all="ignore"):
        same = (recorded == found) | (recorded == found.astype(recorded.dtype)) & np.isinf(recorded)
        same |= np.isnan(recorded) & np.isnan(found)
        apart = np.abs(recorded.astype(np.result_type(found, np.float64)) - found)
    apart = np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))
    sizes = np.where(np.isfinite(found), np.abs(found), 0.0).astype(np.float64)
    norm, size, unit = np.linalg.norm(apart), np.linalg.norm(sizes), 1.0
    if dtype in BITS:
        mean, largest = size / max(1.0, apart.size**0.5), np.finfo(recorded.dtype).max / 2
        unit = np.spacing(np.clip(sizes, mean, largest).astype(recorded.dtype)).astype(float)
        unit = np.maximum(unit, 2.0**-149) * (65536 if dtype == "BFloat16" else 1)  # never 0
    relative = norm / size if size else np.inf * norm if norm else 0.0
    ulp, most = (float(np.max(array, initial=0.0)) for array in (apart / unit, apart))
    return {"ulp": ulp, "max_abs": most, "relative": float(relative)}


def replay(side: Side) -> dict[str, Any]:
    """Compute a side again; return what was judged of it, and how far the record is from it."""
    judged = side.entry.get("judged") or {"verdict": "", "answer": [], "notes": [], "values": {}}
    values = {name: judged["values"].get(name, {}) for name in side.entry["recorded"]}
    for run in ("again", "Float32", "Float64"):
        try:
            found = side.compute(None if run == "again" else run)
        except Exception as error:  # there may be no kernel of this dtype
            why = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
            judged["notes"].append(WORDS["no_kernel"].format(run=WORDS[run].strip(), error=why))
            continue
        for name, node in side.entry["recorded"].items():
            if name in found and list(found[name].shape) == node["shape"]:
                tensor, bfloat16 = found[name], found[name].dtype == mindspore.bfloat16
                array = (tensor.astype(mindspore.float32) if bfloat16 else tensor).asnumpy()
                values[name][run] = distance(side.array(node), array, node["dtype"])
    return {**judged, "values": values}


def table(side: Side, found: dict[str, Any]) -> list[str]:
    """Return what is printed of one side: its distances, and what was judged of them."""
    printed = [side.entry["title"], f"{'':30}{'ulp':>12}{'max abs':>12}{'relative':>12}"]
    for name, value in found["values"].items():
        node, said = side.entry["recorded"][name], value.get("said", WORDS["not_judged"])
        printed.append(f"  {name}, {node['dtype']} {node['shape']}: {said}")
        for run in [run for run in ("again", "Float32", "Float64", "formula") if run in value]:
            numbers = (float(value[run][one]) for one in ("ulp", "max_abs", "relative"))
            printed.append(WORDS[run] + "".join(f"{number:>12.3g}" for number in numbers))
    return [*printed, *(f"  {note}" for note in found["notes"])]


def main() -> None:
    """Replay all that was recorded beside this file."""
    parser = argparse.ArgumentParser(description=WORDS["describes"])
    parser.add_argument("--device", help=WORDS["help_device"])
    parser.add_argument("--json", metavar="FILE", help=WORDS["help_json"])
    arguments = parser.parse_args()
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    if arguments.device:
        mindspore.set_device(arguments.device)
    mindspore.runtime.launch_blocking()  # one without a kernel raises where it is called
    # network: begin
    sys.path.insert(0, str(Path.cwd()))  # where its module may be
    # network: end
    result: dict[str, Any] = {}
    try:
        folders = sorted(path.parent for path in HERE.glob("[ab]/entry.json"))
        sides = {folder.name.upper(): Side(folder, *subject()) for folder in folders}
        found = {letter: replay(side) for letter, side in sides.items()}
        answer = [line for one in found.values() for line in one["answer"]]
        printed = [line for letter in sides for line in table(sides[letter], found[letter])]
        device = f"MindSpore {mindspore.__version__}, {mindspore.get_context('device_target')}"
        printed.append(WORDS["device"].format(device=device))
        result = {"sides": found, "answer": answer, "text": "\n".join([*printed, *answer])}
        print(result["text"])
    # network: begin
    except SystemExit as refused:
        result = {"refused": str(refused)}
        raise
    # network: end
    finally:
        if arguments.json:
            Path(arguments.json).write_text(json.dumps(result, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
