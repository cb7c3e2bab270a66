"""Compute one recorded entry of a training again, and say how far the record is from it.

    python replay.py [--device CPU|GPU|Ascend] [--json FILE]

Needs MindSpore and numpy; for a cell also what builds its network, see subject(). Beside it lie
words.json, with the texts, and a/ (and b/, of a second run), each with entry.json and the recorded
tensors. Bfloat16 is stored as float32, which is exact; entry.json has the dtype.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

HERE = Path(__file__).resolve().parent
WORDS: dict[str, str] = {}
if __name__ == "__main__":
    WORDS.update(json.loads((HERE / "words.json").read_text(encoding="utf-8")))
try:
    import mindspore
    from mindspore import Tensor, ops
except ImportError as error:
    sys.exit(WORDS.get("no_mindspore", "{error}").format(error=error))

BITS = {"BFloat16": 7, "Float16": 10, "Float32": 23, "Float64": 52}  # of the mantissa
SMALLEST = {"BFloat16": -126, "Float16": -14, "Float32": -126, "Float64": -1022}  # exponents
LARGEST = {"BFloat16": 3.39e38, "Float16": 65504.0, "Float32": 3.403e38, "Float64": 1.797e308}
DISTURBED = 3  # runs in which every value that goes in is off by one rounding
Node = dict[str, Any]


# subject: begin
def subject() -> tuple[Any, Any]:
    """Return what is called, and None; or None, and the network whose cell is called."""
    raise NotImplementedError


# subject: end


class Refused(Exception):
    """The entry cannot be computed; says why."""

    def __init__(self, code: str, **params: Any) -> None:
        super().__init__(worded(code, **params))


def worded(code: str, **params: Any) -> str:
    """Return a text of words.json; names of a dump cannot move the cursor in it."""
    text = WORDS[code].format(**params)
    return "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in text)


def nodes(found: Any) -> Iterator[Node]:
    """Yield every value of a list of them, structures before what is in them."""
    for node in found:
        yield node
        yield from nodes([*node.get("list", ()), *node.get("dict", {}).values()])


def tensors(found: Any) -> list[Node]:
    """Return the floating tensors below a part of entry.json."""
    return [node for node in nodes(found) if "file" in node and node["dtype"] in BITS]


def dtype_of(tensor: Any) -> str:
    """Return the dtype of a tensor as entry.json calls it."""
    return str(tensor.dtype)


def at_least(dtype: str, least: str | None) -> str:
    """Return a dtype, or `least` where that is a floating one with more bits."""
    return least if least and dtype in BITS and BITS[dtype] < BITS[least] else dtype


def tensor_of(array: np.ndarray, dtype: str) -> Any:
    """Return a tensor of a dtype; bfloat16 comes as float32 or float64."""
    if dtype == "BFloat16":
        return Tensor(array.astype(np.float32)).astype(mindspore.bfloat16)
    return Tensor(np.ascontiguousarray(array).reshape(array.shape).astype(dtype.lower()))


def array_of(tensor: Any) -> np.ndarray:
    """Return the elements of a tensor."""
    bfloat16 = tensor.dtype == mindspore.bfloat16
    return (tensor.astype(mindspore.float32) if bfloat16 else tensor).asnumpy()


class Side:
    """What was recorded in one run, and how it is computed again.

    Args:
        folder: holds entry.json and the tensors.
        operator: what is called; None: a cell of the network, or a primitive that a cell holds.

    Raises:
        Refused: the network is not the one of which the entry was recorded.
    """

    def __init__(self, folder: Path, operator: Any, network: Any) -> None:
        self.folder, self.network = folder, network
        self.entry = json.loads((folder / "entry.json").read_text(encoding="utf-8"))
        self.sequence: type = tuple  # a record does not tell lists from tuples
        self.called = operator
        # network: begin
        if operator is None:
            self.called = self.found()
        # network: end
        if isinstance(operator, type) and self.entry["attributes"] is not None:  # of a primitive
            made = {k: self.value(v, {}, None) for k, v in self.entry["attributes"].items()}
            self.called = operator(**made)
        # network: begin
        self.constants = [
            (cell, name, value)
            for _, cell in (network.cells_and_names() if operator is None else ())
            for name, value in vars(cell).items()
            if type(value) is Tensor and dtype_of(value) in BITS
        ]
        # network: end
        entry = self.entry
        given = [*entry["args"], *entry["kwargs"].values()]
        self.inputs = [node for node in tensors(given) if not node["numpy"]]
        self.parameters: list[Node] = entry["parameters"]
        found = [*self.inputs, *tensors(entry["parameters"]), *tensors(entry["output"])]
        dtypes = [node["dtype"] for node in found]
        # network: begin
        dtypes += self.declared()
        # network: end
        self.lowest = entry["compute_dtype"] or min(dtypes, key=BITS.__getitem__, default="Float32")

    # network: begin
    def found(self) -> Any:
        """Return what was recorded, in the network that was built."""
        network, primitive = self.network, self.entry["primitive"]
        if not isinstance(network, mindspore.nn.Cell):
            raise Refused("no_network", kind=type(network).__name__)
        cells = {name or "root": cell for name, cell in network.cells_and_names()}
        wanted = self.entry["cell"] if primitive is None else self.entry["around"]
        if wanted not in cells:
            raise Refused("no_cell", cell=wanted, network=type(network).__name__)
        called = cells[wanted] if primitive is None else getattr(cells[wanted], primitive, None)
        names = {"cell": wanted if primitive is None else f"{wanted}.{primitive}"}
        recorded, built = self.entry["class"], type(called).__name__
        if recorded != built:
            raise Refused("other_class", recorded=recorded, built=built, **names)
        for node in self.entry["parameters"]:
            held = cells.get(node["cell"])
            own = {} if held is None else dict(held.parameters_and_names(expand=False))
            if node["name"] not in own:
                raise Refused("no_parameter", parameter=node["at"])
            shapes = {"recorded": tuple(node["shape"]), "built": tuple(own[node["name"]].shape)}
            if shapes["recorded"] != shapes["built"]:
                raise Refused("other_shape", parameter=node["at"], **shapes)
            node["parameter"] = own[node["name"]]
        known = {id(node["parameter"]) for node in self.entry["parameters"]}
        held = cells[wanted].get_parameters() if primitive is None else ()
        left = [parameter.name for parameter in held if id(parameter) not in known]
        if left:
            raise Refused("not_recorded", parameter=left[0], count=len(left))
        return called

    def declared(self) -> Iterator[str]:
        """Yield the floating dtypes in which a cell says that it computes."""
        cells = self.called.cells_and_names() if isinstance(self.called, mindspore.nn.Cell) else ()
        for _, cell in cells:
            for value in vars(cell).values():
                if isinstance(value, mindspore.Type) and str(value) in BITS:
                    yield str(value)
            if cell.mixed_precision_type is not None:  # to_float
                yield {"FP16": "Float16", "BF16": "BFloat16"}.get(
                    cell.mixed_precision_type.name, "Float32"
                )

    # network: end

    def array(self, node: Node) -> np.ndarray:
        """Return the elements of a recorded tensor."""
        return np.load(self.folder / node["file"], allow_pickle=False)

    def value(self, node: Node, given: dict[int, Any], least: str | None) -> Any:
        """Return what an argument is, its floating tensors taken from `given`."""
        if id(node) in given:
            return given[id(node)]
        if "file" in node:
            array = self.array(node)
            return array if node["numpy"] else tensor_of(array, node["dtype"])
        if "list" in node:
            return self.sequence(self.value(item, given, least) for item in node["list"])
        if "dict" in node:
            return {name: self.value(item, given, least) for name, item in node["dict"].items()}
        if "dtype" in node:
            return getattr(mindspore, at_least(node["dtype"], least).lower())
        if "slice" in node:
            return slice(*node["slice"])
        if "number" in node:  # which JSON has not
            return float(node["number"])
        return ... if "ellipsis" in node else node["value"]

    def compute(self, least: str | None = None, seed: int | None = None) -> dict[str, Any]:
        """Compute the entry, forward and backward.

        Args:
            least: the dtype that no floating value is below; None: the recorded dtypes.
            seed: disturbs every floating value that goes in by one rounding; None: none is.

        Returns:
            Name → the tensor that came out.
        """
        random = np.random.default_rng(seed)
        rounding = 2.0 ** -(BITS[self.lowest] + (least is not None))

        def made(node: Node) -> Any:
            array = self.array(node)
            if seed is not None and node["dtype"] in BITS:
                array = array.astype(np.float64)
                array = array * (1 + rounding * random.choice([-1.0, 1.0], array.shape))
            return tensor_of(array, at_least(node["dtype"], least))

        # network: begin
        for node in self.parameters:
            value = made(node)
            node["parameter"].set_dtype(value.dtype)
            node["parameter"].set_data(value)
        # network: end
        outputs = tensors(self.entry["output"])
        arriving = [(n["at"], made(n["arriving"])) for n in outputs if "arriving" in n]
        weights = [node for node in self.parameters if "gradient" in node]
        found: dict[str, Any] = {}

        def forward(*given: Any) -> Any:
            known = {id(node): value for node, value in zip(self.inputs, given)}
            args = [self.value(node, known, least) for node in self.entry["args"]]
            kwargs = {k: self.value(v, known, least) for k, v in self.entry["kwargs"].items()}
            returned = self.called(*args, **kwargs)
            several = isinstance(returned, tuple) and len(self.entry["output"]) == len(returned)
            pairs = zip(self.entry["output"], returned if several else (returned,))
            found.update(item for node, value in pairs for item in returned_tensors(node, value))
            # So the gradient at each output is the recorded one, exactly.
            products = [(found[at] * gradient).sum() for at, gradient in arriving if at in found]
            return sum(products[1:], products[0]) if products else Tensor(0.0)

        inputs = [made(node) for node in self.inputs]
        with ExitStack() as stack:
            stack.enter_context(casts_go_no_lower_than(least))
            # network: begin
            stack.enter_context(self.cells_at_least(least))
            # network: end
            if not arriving or not (inputs or weights):
                self.tried(forward, inputs)
                return found
            positions = tuple(range(len(inputs))) or None
            parameters = [node["parameter"] for node in weights] or None
            gradients_of = mindspore.value_and_grad(forward, positions, parameters)
            gradients = self.tried(gradients_of, inputs)[1]
        of_inputs, of_weights = gradients if positions and parameters else (gradients, gradients)
        if positions:
            found.update(zip([f"gradient:{n['at']}" for n in self.inputs], listed(of_inputs)))
        if parameters:
            found.update(zip([f"gradient:{n['at']}" for n in weights], listed(of_weights)))
        return found

    # network: begin
    @contextmanager
    def cells_at_least(self, least: str | None) -> Iterator[None]:
        """Cast what cells hold beside parameters up, and let none cast down; until the end."""
        before = self.constants if least else []
        if least and isinstance(self.network, mindspore.nn.Cell):
            cells = [cell for _, cell in self.network.cells_and_names()]
            name = "mixed_precision_type"  # to_float
            before = [*before, *((cell, name, getattr(cell, name)) for cell in cells)]
        try:
            for cell, name, value in before:
                dtype = at_least(dtype_of(value), least) if isinstance(value, Tensor) else ""
                setattr(cell, name, tensor_of(array_of(value), dtype) if dtype else None)
            yield
        finally:
            for cell, name, value in before:
                setattr(cell, name, value)

    # network: end

    def tried(self, compute: Callable[..., Any], inputs: list[Any]) -> Any:
        """Compute it with tuples, or with lists, where it does not take those."""
        try:
            return compute(*inputs)
        except (TypeError, ValueError):
            given = nodes([*self.entry["args"], *self.entry["kwargs"].values()])
            if self.sequence is list or not any("list" in node for node in given):
                raise
            self.sequence = list
            return compute(*inputs)

    def recorded(self) -> dict[str, Node]:
        """Return name → what was recorded of each value that comes out."""
        found = {node["at"]: node for node in nodes(self.entry["output"]) if "file" in node}
        for node in (*self.inputs, *self.parameters):
            if "gradient" in node:
                found[f"gradient:{node['at']}"] = node["gradient"]
        return found


def listed(found: Any) -> Any:
    """Return gradients as a sequence."""
    return found if isinstance(found, (tuple, list)) else (found,)


def returned_tensors(node: Node, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and tensor of what was returned, as it was recorded."""
    if "file" in node:
        yield node["at"], value if isinstance(value, Tensor) else Tensor(value)
    elif "list" in node:
        for item, inside in zip(node["list"], value):
            yield from returned_tensors(item, inside)
    elif "dict" in node:
        for name, item in node["dict"].items():
            inside = value[name] if isinstance(value, dict) else getattr(value, name)
            yield from returned_tensors(item, inside)


@contextmanager
def casts_go_no_lower_than(least: str | None) -> Iterator[None]:
    """Let casts to a floating dtype below `least` go to that, and checks take float64."""
    if least is None:
        yield
        return
    wanted = getattr(mindspore, least.lower())
    known = {name.lower(): name for name in BITS}

    def raised(value: Any) -> Any:
        if not isinstance(value, (str, mindspore.Type)):
            return value
        name = known.get(str(value).rpartition(".")[2].lower(), "")
        return wanted if name and at_least(name, least) != name else value

    def cast(original: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: original(
            *map(raised, args), **{name: raised(value) for name, value in kwargs.items()}
        )

    def named(dtype: Any) -> Callable[..., Any]:
        return lambda tensor: tensor.astype(raised(dtype))

    replaced: list[tuple[Any, str, Any]] = [(ops.Cast, "__call__", cast(ops.Cast.__call__))]
    # network: begin
    checks = mindspore._checkparam  # MindFormers asks it whether an input may be float64
    of_types = checks.check_type_name

    def check(name: Any, dtype: Any, *args: Any) -> Any:
        return of_types(name, mindspore.float32 if dtype == mindspore.float64 else dtype, *args)

    replaced.append((checks, "check_type_name", check))
    # network: end
    replaced += [(owner, "cast", cast(owner.cast)) for owner in (ops, ops.functional)]
    replaced += [(Tensor, name, cast(getattr(Tensor, name))) for name in ("astype", "to", "type")]
    for name, dtype in (("half", "float16"), ("float", "float32"), ("bfloat16", "bfloat16")):
        replaced.append((Tensor, name, named(getattr(mindspore, dtype))))
    with ExitStack() as stack:
        for owner, name, new in replaced:
            stack.enter_context(mock.patch.object(owner, name, new))
        yield


def spacing(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return one unit in the last place of a dtype at each element, at least at their mean size."""
    finite = np.abs(array[np.isfinite(array)])
    mean = math.sqrt(np.mean(finite**2)) if finite.size else 0.0
    sizes = np.maximum(np.where(np.isfinite(array), np.abs(array), 0.0), mean)
    exponents = np.frexp(sizes)[1] - 1
    return np.ldexp(1.0, np.maximum(exponents, SMALLEST[dtype]) - BITS[dtype])


def differences(recorded: np.ndarray, computed: np.ndarray, dtype: str) -> np.ndarray:
    """Return how far the elements of two arrays are apart; inf where one alone is not finite."""
    with np.errstate(all="ignore"):
        same = (recorded == computed) | (np.isnan(recorded) & np.isnan(computed))
        if dtype in LARGEST:  # it has no number for them
            same |= np.isinf(recorded) & (np.abs(computed) > LARGEST[dtype])
        apart = np.where(same, 0.0, np.abs(recorded - computed))
    return np.where(np.isnan(apart), np.inf, apart)


def distance(recorded: np.ndarray, computed: np.ndarray, dtype: str) -> dict[str, float]:
    """Return how far a recorded tensor is from a computed one: ulp, max_abs, relative.

    ulp: of the recorded dtype, of the larger of the element and the root of the mean square of
    all; relative: the norm of the difference by the norm of what was computed.
    """
    if not recorded.size:
        return {"ulp": 0.0, "max_abs": 0.0, "relative": 0.0}
    apart = differences(recorded, computed, dtype)
    units = apart / spacing(computed, dtype) if dtype in BITS else apart
    norm, size = np.linalg.norm(apart), np.linalg.norm(computed[np.isfinite(computed)])
    relative = norm / size if size else (math.inf if norm else 0.0)
    return {"ulp": float(units.max()), "max_abs": float(apart.max()), "relative": float(relative)}


def moves(result: np.ndarray, disturbed: list[np.ndarray], gradient: bool) -> np.ndarray:
    """Return how far the elements of a result move where what goes in is off by one rounding.

    Two roundings may cancel: no element moves less than its row does on average; of a gradient,
    in which what was rounded on the way forward may cancel, than the whole does.
    """
    with np.errstate(all="ignore"):
        moved = np.max([np.abs(other - result) for other in disturbed], axis=0)
    moved = np.where(np.isfinite(moved), moved, 0.0)
    axis = -1 if moved.ndim and not gradient else None
    return np.maximum(moved, np.sqrt(np.mean(moved**2, axis=axis, keepdims=True)))


def are_rounded(exact: np.ndarray, disturbed: list[np.ndarray], dtype: str) -> bool:
    """Return whether a dtype holds all that moved with inputs that it does not hold.

    Then the kernel computes in that dtype, whatever it is given.
    """
    found = np.concatenate([other[other != exact] for other in disturbed])
    with np.errstate(all="ignore"):
        found = found[np.isfinite(found) & (found != np.rint(found))].real
        held = found.astype(np.float16 if dtype == "Float16" else np.float32).astype(np.float64)
    if dtype == "BFloat16":
        held[(found.astype(np.float32).view(np.uint32) & 0xFFFF) != 0] = np.nan
    return bool(found.size) and bool((held == found).all())


def allowance(exact: np.ndarray, moved: np.ndarray, dtype: str, length: int) -> np.ndarray:
    """Return how far from the exact value rounding may lead, for each element.

    What one rounding of all that goes in does, and one of what comes out, times 64, or 4 times the
    root of the length of sums where that is more: kernels approximate functions, and add up in any
    order. Times 16 below float32, where they compute in more bits than they store.

    Args:
        moved: by one rounding of what goes in, in float64 or in the recorded dtype.
        length: of the longest sum there may be.
    """
    times = max(64.0, 4 * math.sqrt(length)) if BITS[dtype] > 10 else 16.0
    sizes = np.where(np.isfinite(exact), np.abs(exact), 0.0)
    smallest = 2.0 ** (SMALLEST[dtype] - BITS[dtype])
    return times * (moved + sizes * 2.0 ** -(BITS[dtype] + 1) + smallest)


class Run:
    """What came out of one run: arrays of float64, or of what holds all elements, and dtypes."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.dtypes = {name: dtype_of(tensor) for name, tensor in found.items()}
        arrays = {name: array_of(tensor) for name, tensor in found.items()}
        self.arrays = {n: a.astype(np.result_type(a, np.float64)) for n, a in arrays.items()}


def replay(side: Side) -> dict[str, Any]:
    """Compute a side again, and judge what was recorded.

    Returns:
        verdict: ordinary (rounding explains what is apart), wrong or undecided; reference: the
        dtype it was compared in; values: of each, its distances and verdict; notes.
    """
    runs = {run: Run(side.compute()) for run in ("again", "repeated")}
    notes, reference = [], ""
    for dtype in ("Float32", "Float64"):
        if BITS[side.lowest] < BITS[dtype]:
            try:
                runs[dtype] = Run(side.compute(dtype))
                reference = dtype
            except Exception as error:  # no kernel of this dtype, or a check that refuses it
                why = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
                notes.append(worded("no_kernel", dtype=dtype, error=why[:300]))
    if reference:
        for least, of in ((None, "again"), (reference, reference)):
            runs |= {f"{of}{n}": Run(side.compute(least, n)) for n in range(DISTURBED)}
    again, values = runs["again"].arrays, {}
    for name, node in side.recorded().items():
        if name not in again:
            notes.append(worded("not_returned", value=name))
            continue
        if tuple(node["shape"]) != again[name].shape:
            shapes = {"recorded": node["shape"], "built": list(again[name].shape)}
            raise Refused("other_output", value=name, **shapes)
        came = runs[reference].dtypes.get(name, "") if reference else ""
        of_it = {run: one.arrays[name] for run, one in runs.items() if name in one.arrays}
        values[name], said = judge(side, name, node, of_it, reference)
        if node["dtype"] in BITS and came in BITS and BITS[came] <= BITS[side.lowest]:
            values[name]["verdict"] = "undecided"
            said.append("cast_inside")
        known = {
            "value": name,
            "dtype": came,
            "lowest": side.lowest,
            "share": f"{values[name].get('here', 0):.2g}",
        }
        notes += [worded(code, **known) for code in said]
    verdicts = {value["verdict"] for value in values.values()} or {"undecided"}
    verdict = next(one for one in ("wrong", "undecided", "ordinary") if one in verdicts)
    return {"verdict": verdict, "reference": reference, "values": values, "notes": notes}


def judge(
    side: Side, name: str, node: Node, runs: dict[str, np.ndarray], reference: str
) -> tuple[dict[str, Any], list[str]]:
    """Return the distances and the verdict of one recorded tensor, and codes of what to say."""
    recorded, dtype, again = side.array(node), node["dtype"], runs["again"]
    recorded = recorded.astype(np.result_type(recorded, np.float64))
    value: dict[str, Any] = {"dtype": dtype, "shape": node["shape"], "verdict": "undecided"}
    for run in ("again", "Float32", "Float64"):
        if run in runs:
            value[run] = distance(recorded, runs[run], dtype)
    value["repeats"] = bool(np.array_equal(again, runs["repeated"], equal_nan=True))
    if dtype not in BITS or not recorded.size:
        value["verdict"] = "undecided" if value["again"]["max_abs"] else "ordinary"
    if dtype not in BITS or not recorded.size or reference not in runs:
        return value, []
    exact = runs[reference]
    shapes = [other["shape"] for other in (*side.inputs, *side.parameters)]
    length = max([1, *(n for shape in shapes for n in shape)])
    length = max([length, *(math.prod(shape) // recorded.size for shape in shapes)])
    gradient = name.startswith("gradient:")
    moved = [
        moves(runs[of], [runs[f"{of}{n}"] for n in range(DISTURBED)], gradient)
        for of in ("again", reference)
    ]
    lowest = min(dtype, side.lowest, key=BITS.__getitem__)
    allowed = allowance(exact, np.maximum(*moved), lowest, length) + node.get("rounding", 0.0)

    def share(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.max(differences(a, b, dtype) / allowed))

    value["share"], value["here"] = share(recorded, exact), share(again, exact)
    if distance(runs["repeated"], again, dtype)["relative"] > 2.0 ** -(BITS[dtype] / 2):
        return value, ["random"]
    if value["share"] <= 1:
        disturbed = [runs[f"{reference}{n}"] for n in range(DISTURBED)]
        if are_rounded(exact, disturbed, lowest):
            return value, ["fewer_bits"]
        value["verdict"] = "ordinary"
    elif value["share"] > (64 if gradient else 8) or value["here"] < value["share"] / 4:
        value["verdict"] = "wrong"
    return value, ["wrong_here"] if value["here"] > 1 else []


def headline(letter: str, found: dict[str, Any]) -> str:
    """Return what is concluded of one side."""
    verdict, reference = found["verdict"], found["reference"]
    values = {
        n: v for n, v in found["values"].items() if v["verdict"] == verdict and reference in v
    }
    if verdict == "undecided" or not values:
        return worded("undecided", side=letter)
    worst = max(values, key=lambda name: values[name].get("share", 0.0))
    apart = values[worst][reference]
    known = {"side": letter, "dtype": reference.lower(), "value": worst}
    if verdict == "ordinary":
        ulp = max(value[reference]["ulp"] for value in values.values())
        return worded("agrees", ulp=f"{ulp:.2g}", **known)
    if math.isinf(apart["max_abs"]):
        return worded("not_finite", **known)
    share = apart["relative"]
    return worded("off", by=f"{share:.1%}" if share >= 1e-3 else f"{share:.1e}", **known)


def table(letter: str, side: Side, found: dict[str, Any]) -> Iterator[str]:
    """Yield lines with the distances of one side."""
    place = {name: side.entry[name] for name in ("entry", "phase", "step", "rank", "run")}
    yield worded("title", side=letter, **place)
    yield f"{'':30}{'ulp':>12}{'max abs':>12}{'relative':>12}"
    for name, value in found["values"].items():
        known = {"value": name, "dtype": value["dtype"], "shape": value["shape"]}
        code = value["verdict"]
        if value["dtype"] not in BITS:
            code = "equal" if value["verdict"] == "ordinary" else "other"
        share = f"{value.get('share', 0.0):.2g}"
        yield f"  {worded('value', **known)}: {worded(f'is_{code}', share=share)}"
        for run in ("again", "Float32", "Float64"):
            if run in value:
                label = worded("again") if run == "again" else worded("in", dtype=run)
                apart = (f"{value[run][k]:>12.3g}" for k in ("ulp", "max_abs", "relative"))
                wide = sum(ord(letter) > 0x2E7F for letter in label)  # two columns each
                yield f"    {label:{26 - wide}}{''.join(apart)}"
        if not value["repeats"]:
            yield f"    {worded('differs_between_runs')}"
    for note in dict.fromkeys(found["notes"]):
        yield f"  {note}"


# two runs: begin
def same_inputs(a: Side, b: Side) -> bool:
    """Return whether what goes in is the same in both runs, bit for bit."""
    files = []
    for side in (a, b):
        given = [*side.entry["args"], *side.entry["kwargs"].values(), *side.parameters]
        files.append([(side, node) for node in nodes(given) if "file" in node])
    return len(files[0]) == len(files[1]) and all(
        (x["dtype"], x["shape"]) == (y["dtype"], y["shape"])
        and a.array(x).tobytes() == b.array(y).tobytes()
        for (_, x), (_, y) in zip(*files)
    )


# two runs: end


def conclusion(sides: dict[str, Side], found: dict[str, Any]) -> list[str]:
    """Return what is concluded: a line for each side, and of two which is wrong."""
    lines = [headline(letter, one) for letter, one in found.items()]
    # two runs: begin
    if len(sides) == 2:
        wrong = [letter for letter, one in found.items() if one["verdict"] == "wrong"]
        lines.append(worded("inputs_agree" if same_inputs(*sides.values()) else "inputs_differ"))
        if len(wrong) == 2:
            lines.append(worded("both_wrong"))
        elif wrong and "ordinary" in (one["verdict"] for one in found.values()):
            lines.append(worded("one_is_wrong", side=wrong[0]))
    # two runs: end
    return lines


def plain(found: Any) -> Any:
    """Return what was found as JSON has it: a number that is not finite is a text there."""
    return json.loads(json.dumps(found), parse_constant=str)


def prepare() -> None:
    """Let operators run when they are called, so that one without a kernel raises there."""
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    mindspore.runtime.launch_blocking()


def main() -> None:
    """Replay all that was recorded beside this file."""
    parser = argparse.ArgumentParser(description=worded("describes"))
    parser.add_argument("--device", help=worded("help_device"))
    parser.add_argument("--json", metavar="FILE", help=worded("help_json"))
    arguments = parser.parse_args()
    if arguments.device:
        mindspore.set_device(arguments.device)
    prepare()
    sys.path.insert(0, os.getcwd())  # where the network's module may be
    result: dict[str, Any] = {}
    try:
        operator, network = subject()
        folders = [HERE / name for name in ("a", "b") if (HERE / name / "entry.json").exists()]
        sides = {folder.name.upper(): Side(folder, operator, network) for folder in folders}
        found = {letter: replay(side) for letter, side in sides.items()}
        answer = conclusion(sides, found)
        lines = [line for a, side in sides.items() for line in table(a, side, found[a])]
        device = mindspore.get_context("device_target")
        lines += [worded("device", version=mindspore.__version__, device=device), *answer]
        result = {"sides": found, "answer": answer, "text": "\n".join(lines)}
        print(result["text"])
    except Refused as refused:
        result = {"refused": str(refused)}
        sys.exit(str(refused))
    finally:
        if arguments.json:
            text = json.dumps(plain(result), ensure_ascii=False, indent=1, allow_nan=False)
            Path(arguments.json).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
