"""A cell's construct run a second time in higher precision, without a trace.

Its operators are answered by formulas (replay/precise), never by what stands in their place, and
cells inside it run by their `construct` alone: no hook, no cast, no recomputation, no gradient of
MindSpore's takes part. Tensors that Python sees on the way are float64; what they are made of is
known by `Value`s beside them. Random operators give what they gave the first time.
"""

from __future__ import annotations

import ast
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from os.path import dirname
from types import FrameType, FunctionType, ModuleType
from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn

from mindrlhf_msprobe.capture.cells import is_jitted, named_cells
from mindrlhf_msprobe.capture.framework.private import FIRST_RUN
from mindrlhf_msprobe.capture.opening.observer import OperatorCall
from mindrlhf_msprobe.capture.operators.interception import (
    intercepted,
    replaced_in_library,
    stand_in,
)
from mindrlhf_msprobe.capture.operators.inventory import Operator, ReplacedFunction
from mindrlhf_msprobe.capture.tensors.summary import to_host
from mindrlhf_msprobe.replay import kinds
from mindrlhf_msprobe.replay.held import CannotRepeatError, Drawn, DrawnAgain
from mindrlhf_msprobe.replay.kernels import NoAnswerError, by_kernel
from mindrlhf_msprobe.replay.precise import tape
from mindrlhf_msprobe.replay.precise.formulas import NoFormulaError
from mindrlhf_msprobe.replay.precise.formulas.answering import answer, has_formula
from mindrlhf_msprobe.replay.precise.values import (
    NoGradientError,
    Value,
    dtype_name,
    leaves_of,
    replaced,
)

#: What looks at its arguments, or computes while a graph would be compiled.
_LOOKS = frozenset(["DType", "DTypeId", "Shape", "TensorShape", "Rank", "Size", "ProxyOp"])
_LOOKS |= {"dtype", "shape", "IsInstance", "IsSubClass", "is_tensor", "numel", "size"}
#: Functions that may be told to write into what they are given.
_TOLD_TO_WRITE = frozenset(["relu", "relu6", "silu", "elu", "hardtanh", "threshold", "leaky_relu"])
#: What may return memory of what it is given: to write into either changes both.
_VIEWS = frozenset(
    [
        *("reshape", "view", "view_as", "reshape_as", "flatten", "permute", "transpose", "t", "T"),
        *("swapaxes", "swapdims", "unsqueeze", "expand_dims", "squeeze", "broadcast_to", "expand"),
        *("expand_as", "split", "chunk", "unbind", "unstack", "narrow", "__getitem__", "select"),
        *("stop_gradient", "detach", "identity", "contiguous", "depend", "cast", "to", "astype"),
        *("type", "type_as", "float", "double", "half", "bfloat16", "int", "long", "bool"),
        *("diagonal", "Reshape", "Transpose", "ExpandDims", "Squeeze", "BroadcastTo", "Split"),
        *("Cast", "Identity", "Depend", "StridedSlice", "Slice", "SplitWithSize"),
    ]
)
#: Attributes by which cells declare the dtype they compute in.
_DECLARED: tuple[str, ...] = ("compute_dtype", "compute_type", "dtype", "softmax_compute_dtype")
_DECLARED += ("softmax_compute_type", "layernorm_compute_dtype", "layernorm_compute_type")
_DECLARED += ("rotary_dtype", "_compute_dtype")
#: What `Cell.to_float` leaves on a cell.
_TO_FLOAT = {"fp16": "float16", "bf16": "bfloat16"}


def only_looks(operator: Operator) -> bool:
    """Return whether an operator asks for a dtype or shape, and computes nothing."""
    return operator.name in _LOOKS


def computes_floats(call: OperatorCall, output: Any) -> bool:
    """Return whether floating numbers are computed: not whole ones, shapes, or copies of others."""
    operator = call.operator
    if only_looks(operator) or kinds.is_copy(operator.kind, operator.name):
        return False
    leaves = leaves_of([call.args, call.kwargs, output])
    return any(
        is_complex(leaf) or (isinstance(leaf, Tensor) and leaf.is_floating_point())
        for leaf in leaves
    )


def is_complex(leaf: Any) -> bool:
    """Return whether something is a tensor of complex numbers."""
    return isinstance(leaf, Tensor) and dtype_name(leaf.dtype).startswith("complex")


def writes_in_place(call: OperatorCall) -> bool:
    """Return whether a call changes what it is given."""
    operator, told = call.operator, call.kwargs.get("inplace")
    if operator.name in _TOLD_TO_WRITE and (told or True in call.args[1:]):
        return True
    if kinds.in_place(operator.name) or "out" in call.kwargs:
        return True
    known = kinds.is_norm(operator.name) or has_formula(operator.kind, operator.name)
    return kinds.writes(operator.name) and not known


def precision_of(cell: nn.Cell | None, *values: Any, declared: str = "") -> tape.Precision:
    """Return the lowest precision of tensors, of a cell's parameters, and of what is declared."""
    names = [declared] if declared else []
    tensors = [leaf for value in values for leaf in leaves_of(value) if isinstance(leaf, Tensor)]
    if cell is not None:
        tensors += cell.get_parameters()
        for attributes in map(vars, named_cells(cell).values()):
            names += [str(attributes.get(name, "")).lower() for name in _DECLARED]
            names += [dtype for flag, dtype in _TO_FLOAT.items() if attributes.get(flag) is True]
    names += {str(tensor.dtype).lower() for tensor in tensors}
    return tape.lowest_precision(names)


def dtype_of(leaves: Sequence[Any]) -> str:
    """Return the floating dtype in which an operator returns what it is given.

    A dtype among its arguments is the one it returns; else the highest of its tensors' is.
    """
    for leaf in leaves:
        if not isinstance(leaf, (Tensor, str, int, float, type(None))):
            name = dtype_name(leaf)
            if name in tape.PRECISIONS:
                return name
    names = {str(leaf.dtype).lower() for leaf in leaves if isinstance(leaf, Tensor)}
    names &= {*tape.PRECISIONS}
    if names == {"float16", "bfloat16"} or not names:
        return "float32"
    return min(names, key=lambda name: tape.PRECISIONS[name].unit)


def host_values(tensor: Tensor) -> np.ndarray:
    """Return a copy of a tensor's elements; bfloat16 as float32."""
    return np.array(to_host(tensor).values())


def is_first_run() -> bool:
    """Return whether this runs inside a cell that is computed again for its gradient."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not FIRST_RUN:
        frame = frame.f_back
    return frame is not None


class SecondRun:
    """One computation of a construct in higher precision.

    Args:
        precision: of the computation that is judged.
        drawn: what random operators drew the first time, in order.
        seed: of the draws of rounding.
        dtype: what is computed in.
    """

    def __init__(
        self,
        precision: tape.Precision,
        drawn: Sequence[Drawn] = (),
        *,
        seed: int = 0,
        dtype: Any = np.float64,
    ) -> None:
        self.tape = tape.Tape(precision, seed=seed, dtype=dtype)
        self._drawn = DrawnAgain(drawn)
        self._known: dict[int, tuple[Any, Value]] = {}  # by id of the tensor, which is held
        self._own: set[int] = set()  # made by this run
        self._viewed: set[int] = set()  # sharing their memory with others
        self._constants: set[int] = set()
        self._held: list[Any] = []  # their ids must stay theirs
        self.inputs: list[Value | None] = []
        self.parameters: dict[int, tuple[Parameter, Value]] = {}
        self.uses: dict[int, int] = {}
        #: How many operators that compute floating numbers were met.
        self.met = 0
        #: Whether a tensor came by that was made by no operator that was seen.
        self.unseen = False

    def run(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        cell: nn.Cell | None = None,
    ) -> list[Value | None]:
        """Run a function of tensors; return a value for each leaf it returns.

        What it is given is not changed. Leaves that are no tensors, and tensors of which nothing is
        known, are None.

        Args:
            cell: whose construct it is; tensors among its attributes are constants.

        Raises:
            CannotRepeatError: it writes into tensors of others, communicates, or uses an operator
                that can be computed in no other way.
            Exception: what the function raises by itself.
        """
        self._note_inputs(args, kwargs)
        if cell is not None:
            for inside in named_cells(cell).values():
                self._note_constants([*vars(inside).values()])

        def transposed(tensor: Tensor) -> Any:
            """Return what the property `T` of a tensor gives."""
            value = self._value(tensor)
            return self._made(value.transpose(range(value.ndim)[::-1]), str(tensor.dtype).lower())

        with intercepted(self._handle, nested=True), _PLAIN_CELLS.entered(transposed):
            returned = function(*args, **kwargs)
        outputs: list[Value | None] = []
        for leaf in leaves_of(returned):
            known = self._known.get(id(leaf)) if isinstance(leaf, Tensor) else None
            if known is None and isinstance(leaf, Tensor):
                self.unseen = self.unseen or id(leaf) not in self._constants
            outputs.append(None if known is None else known[1])
        return outputs

    def run_operator(
        self, call: OperatorCall, before: np.ndarray | None = None
    ) -> list[Value | None]:
        """Compute one operator; return a value for each leaf it returns.

        Args:
            before: of one that writes into its first argument, what stood there.

        Raises:
            CannotRepeatError: as `run` does.
        """
        if before is not None:
            self._known[id(call.args[0])] = call.args[0], self.tape.value(before)
            self._own.add(id(call.args[0]))
        self._note_inputs(call.args, call.kwargs)
        self._note_constants([call.args, call.kwargs])
        if before is None:
            made = self._handle(call.operator, call.compute, call.args, call.kwargs)
        else:
            made = self._written(call, alone=True)
        known = [self._known.get(id(leaf)) for leaf in leaves_of(made)]
        return [None if one is None else one[1] for one in known]

    def _note_inputs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        for leaf in leaves_of([args, kwargs]):
            floats = isinstance(leaf, Tensor) and leaf.is_floating_point()
            self.inputs.append(self._value(leaf, given=True) if floats else None)

    def _note_constants(self, value: Any) -> None:
        self._constants |= {id(leaf) for leaf in leaves_of(value) if isinstance(leaf, Tensor)}

    def gradients(
        self, arriving: Sequence[tuple[Value, np.ndarray]], wanted: Sequence[Value]
    ) -> tape.Gradients:
        """Return the gradients of values, given those that arrive at outputs."""
        pairs = [(value, self.tape.value(gradient)) for value, gradient in arriving]
        return tape.backward(self.tape, pairs, wanted)

    # --- tensors and what is known of them -----------------------------------------------------

    def _made(self, value: Value, dtype: str) -> Tensor:
        """Return a tensor that stands for a value; Python sees a dtype as in the first run."""
        array = np.ascontiguousarray(value.exact).reshape(value.shape)
        if value.floating:
            with np.errstate(all="ignore"):
                array = array.astype("float32" if dtype == "bfloat16" else dtype)
        tensor = Tensor(array, mindspore.bfloat16) if dtype == "bfloat16" else Tensor(array)
        self._known[id(tensor)] = tensor, value
        self._own.add(id(tensor))
        return tensor

    def _value(self, tensor: Tensor, *, given: bool = False) -> Value:
        known = self._known.get(id(tensor))
        if known is None:
            value = self.tape.value(host_values(tensor))
            if isinstance(tensor, Parameter):
                self.parameters[id(tensor)] = tensor, value
            elif not given and id(tensor) not in self._constants:
                self.unseen = self.unseen or value.floating
            self._known[id(tensor)] = known = tensor, value
        if id(tensor) in self.parameters and not given:
            self.uses[id(tensor)] = self.uses.get(id(tensor), 0) + 1
        return known[1]

    def _lifted(self, value: Any) -> Any:
        def lifted(leaf: Any) -> Any:
            if isinstance(leaf, slice):
                return slice(*map(lifted, (leaf.start, leaf.stop, leaf.step)))
            return self._value(leaf) if isinstance(leaf, Tensor) else leaf

        return replaced(value, lifted)

    def _lowered(self, value: Any, dtype: str) -> Any:
        return replaced(value, lambda x: self._made(x, dtype) if isinstance(x, Value) else x)

    # --- operators -----------------------------------------------------------------------------

    def _handle(self, *given: Any) -> Any:
        call = OperatorCall(*given)
        operator = call.operator
        if kinds.communicates(operator.kind, operator.name):
            raise CannotRepeatError.saying("second.communicates", operator=operator.full_name)
        if kinds.draws(operator.name):
            return self._drawn_before(call)
        if writes_in_place(call):
            return self._written(call)
        leaves = leaves_of([call.args, call.kwargs])
        tensors = {id(leaf) for leaf in leaves if isinstance(leaf, Tensor)}
        if only_looks(operator) or not tensors:
            made = call.compute(*call.args, **call.kwargs)
            self._note_constants(made)
            self._held.append(made)
            return made
        if any(map(is_complex, leaves)):
            raise CannotRepeatError.saying("second.complex", operator=operator.full_name)
        self.met += computes_floats(call, None)
        made = self._lowered(self._answer(call), dtype_of(leaves))
        if operator.name in _VIEWS:
            self._viewed |= tensors | {id(leaf) for leaf in leaves_of(made)}
        return made

    def _answer(self, call: OperatorCall) -> Any:
        operator, kwargs = call.operator, call.kwargs
        settings = _settings(call)
        if operator.kind == "Primitive" and settings is None:
            raise CannotRepeatError.saying("second.no_attributes", operator=operator.full_name)
        given: tuple[Any, ...] = self._lifted(call.args)
        named: dict[str, Any] = self._lifted(kwargs)
        name = operator.name
        alone = "axis" in kwargs and not kwargs.get("return_indices")
        if operator.kind == "Tensor" and name in ("max", "min") and alone:
            name = f"a{name}"  # this form returns values without indices
            named = {key: named[key] for key in ("axis", "keepdims") if key in named}
        try:
            return answer(self.tape, operator.kind, name, given, named, settings)
        except (NoFormulaError, ValueError, IndexError, KeyError):
            pass
        try:  # in another process: one that fails between gradients would end the training
            return by_kernel(self.tape, operator, given, named, settings)
        except NoAnswerError:
            return self._inside(call)

    def _inside(self, call: OperatorCall) -> Any:
        """Return what MindSpore's own Python makes of other operators.

        Raises:
            CannotRepeatError: it is none of MindSpore's functions, or uses what has no answer.
        """
        operator = call.operator
        if operator.kind != "Primitive" and isinstance(operator.original, FunctionType):
            try:
                with intercepted(self._handle, nested=True):
                    made = operator.original(*call.args, **call.kwargs)
            except CannotRepeatError as error:
                if error.said.code != "second.no_formula":
                    raise
                made = None
            tensors = [leaf for leaf in leaves_of(made) if isinstance(leaf, Tensor)]
            if tensors and all(id(leaf) in self._known for leaf in tensors):
                self._held.append(made)
                return replaced(
                    made, lambda x: self._known[id(x)][1] if isinstance(x, Tensor) else x
                )
        raise CannotRepeatError.saying("second.no_formula", operator=operator.full_name)

    def _written(self, call: OperatorCall, *, alone: bool = False) -> Any:
        """Write into a tensor that this run made itself, and of which there is no view.

        Args:
            alone: whether nothing else is computed.
        """
        operator, args = call.operator, call.args
        target = args[0] if args else None
        known = kinds.in_place(operator.name) and operator.kind != "Primitive"
        if not operator.name.startswith("__"):  # on some devices it returns what it should write
            known = known and alone
        of_own = id(target) in self._own and id(target) not in self._viewed
        if isinstance(target, Tensor) and known and of_own:
            given: tuple[Any, ...] = self._lifted(args)
            named: dict[str, Any] = self._lifted(call.kwargs)
            with suppress(NoFormulaError, ValueError, IndexError, KeyError):
                name = kinds.out_of_place(operator.name)
                value = answer(self.tape, operator.kind, name, given, named, None)
                if isinstance(value, Value) and value.shape == target.shape:
                    # What Python sees of it is of before.
                    self._known[id(target)] = target, value
                    return target
        raise CannotRepeatError.saying("second.in_place", operator=operator.full_name)

    def _drawn_before(self, call: OperatorCall) -> Any:
        """Return what a random operator gives with the numbers it drew the first time."""
        operator, args, kwargs = call.operator, call.args, call.kwargs
        drawn = self._drawn.take(operator)
        if drawn is None or "alpha" in operator.name.lower():  # that of alpha_dropout is no mask
            raise CannotRepeatError.saying("second.random", operator=operator.full_name)
        before = drawn.output
        if "dropout" not in operator.name.lower():
            if kinds.in_place(operator.name):
                raise CannotRepeatError.saying("second.in_place", operator=operator.full_name)
            made = replaced(before, lambda leaf: self._draw(leaf, call))
            return self._lowered(made, dtype_of(leaves_of([args, kwargs])))
        given = next((leaf for leaf in leaves_of([args, kwargs]) if isinstance(leaf, Tensor)), None)
        leaves = leaves_of(before)
        if given is None or leaves[0].shape != given.shape:
            raise CannotRepeatError.saying("second.random", operator=operator.full_name)
        value = self._value(given)
        result = value * self._mask(value, leaves[0], call)
        several = isinstance(before, tuple)
        results = (result, *map(self._constant, leaves[1:])) if several else result
        return self._lowered(results, str(given.dtype).lower())

    def _mask(self, value: Value, given: np.ndarray, call: OperatorCall) -> Value:
        """Return the factors of a dropout: 0, or what makes up for those."""
        settings = _settings(call)
        unknown = (given == 0) & (value.exact == 0)
        sizes = np.abs(value.exact[(given != 0) & (value.exact != 0)])
        ratio = 1.0
        if sizes.size:
            ratio = float(np.median(np.abs(given[(given != 0) & (value.exact != 0)]) / sizes))
        if abs(ratio - 1) > 1e-3:
            if settings is not None and hasattr(settings, "keep_prob"):
                ratio = 1 / float(settings.keep_prob)
            else:
                given_p = (call.kwargs.get("p"), *call.args[1:2])
                numbers = [a for a in given_p if isinstance(a, float)]
                ratio = 1 / (1 - (numbers[0] if numbers else 0.5))
        known = np.where(given != 0, ratio, 0.0)
        draws = [np.where(unknown, ratio * share, known) for share in (0.5, 0.0, 1.0)]
        return Value(self.tape, [draws[min(i, 1 + i % 2)] for i in range(self.tape.draws + 1)])

    def _draw(self, leaf: Any, call: OperatorCall) -> Any:
        """Return what was drawn; what gradient of it flows to what it was drawn of is not known."""
        value, name = self._constant(leaf), call.operator.full_name
        if not isinstance(value, Value) or not kinds.passes_gradients(call.operator.name):
            return value

        def pull(*_: Value) -> Any:
            raise NoGradientError(name)

        given = leaves_of([call.args, call.kwargs])
        operands = [self._value(leaf) for leaf in given if isinstance(leaf, Tensor)]
        return self.tape.made_of(value, operands, pull)

    def _constant(self, leaf: Any) -> Any:
        return self.tape.value(leaf) if isinstance(leaf, np.ndarray) else leaf


def _settings(call: OperatorCall) -> Any:
    """Return what has the attributes of a primitive; None of all else."""
    if call.operator.kind != "Primitive":
        return None
    return call.operator.replaces or getattr(call.compute, "__self__", None)


# --- cells: what they compute as their library defined it -----------------------------------------


class _Plain(threading.local):
    """Whether cells of this thread run by their construct alone.

    Attributes:
        transposed: answers the property `T` of tensors; None: cells run as usual.
    """

    transposed: Callable[[Tensor], Any] | None = None


class _PlainCells:
    """Lets cells run by their construct alone, in the threads of second runs.

    Functions of MindSpore's layers that are replaced are there as their source has them.
    """

    def __init__(self) -> None:
        self._of_thread, self._lock = _Plain(), threading.Lock()
        self._runs, self._put_back = 0, ExitStack()

    @contextmanager
    def entered(self, transposed: Callable[[Tensor], Any]) -> Iterator[None]:
        """Let cells that this thread calls inside run so."""
        with self._lock:
            if not self._runs:
                self._put_on()
            self._runs += 1
        mine = self._of_thread
        before, mine.transposed = mine.transposed, transposed
        try:
            yield
        finally:
            mine.transposed = before
            with self._lock:
                self._runs -= 1
                if not self._runs:
                    self._put_back.close()

    def _put_on(self) -> None:
        mine, original, stood = self._of_thread, nn.Cell.__call__, vars(Tensor).get("T")
        for one in replaced_in_library():
            self._put(one.module, one.name, self._gate(one))
        if stood is not None:
            self._put(
                Tensor,
                "T",
                property(lambda t: mine.transposed(t) if mine.transposed else stood.__get__(t)),
            )

        def call(cell: nn.Cell, *args: Any, **kwargs: Any) -> Any:
            if mine.transposed is None:
                return original(cell, *args, **kwargs)
            return construct_of(cell)(*args, **kwargs)

        self._put(nn.Cell, "__call__", call)

    def _put(self, owner: Any, name: str, instead: Any) -> None:
        self._put_back.callback(setattr, owner, name, vars(owner)[name])
        setattr(owner, name, instead)

    def _gate(self, replaced: ReplacedFunction) -> Callable[..., Any]:
        """Return what is a function's definition in a second run, and else what stood there."""
        stood = vars(replaced.module)[replaced.name]
        defined = defined_function(replaced.module, replaced.name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._of_thread.transposed is None:
                return stood(*args, **kwargs)
            if defined is None:
                raise CannotRepeatError.saying("second.replaced", operator=replaced.full_name)
            return defined(*args, **kwargs)

        return stand_in(stood, call)


_PLAIN_CELLS = _PlainCells()


#: Libraries whose layers run as their source defines them.
_LIBRARIES = ("mindspore.", "mindformers.")
#: Those of which an object's own `construct`, beside its class, is no definition either.
_LAYERS = ("mindspore.",)


def construct_of(cell: nn.Cell) -> Callable[..., Any]:
    """Return the construct of a cell.

    Of a layer of MindSpore or MindFormers it is the one that the source of its class has, also
    where the class has another one by now; of other cells what they have.

    Raises:
        CannotRepeatError: it is compiled.
    """
    if is_jitted(cell):
        raise CannotRepeatError.saying("second.compiled", cell=type(cell).__name__)
    own = vars(cell).get("construct")
    kind = next((k for k in type(cell).__mro__ if "construct" in vars(k)), None)
    if kind is None or not kind.__module__.startswith(_LIBRARIES):
        return cell.construct
    if own is not None and not kind.__module__.startswith(_LAYERS):
        return cell.construct
    found: Callable[..., Any] = _as_defined(kind, vars(kind)["construct"]).__get__(cell)
    return found


@functools.lru_cache(maxsize=1024)
def defined_function(module: ModuleType, name: str) -> Callable[..., Any] | None:
    """Return the function that the source of a module of MindSpore has under a name.

    None where that cannot be told.
    """
    try:
        with open(f"{module.__file__}", encoding="utf-8") as source:
            tree = ast.parse(source.read())
    except (OSError, SyntaxError, ValueError):
        return None
    defined = _definition(tree, name)
    if defined is not None and not defined.decorator_list:
        function: Callable[..., Any] = _executed(defined, module)[name]
        return function
    for node in (n for n in tree.body if isinstance(n, ast.ImportFrom) and not n.level):
        for alias in node.names:
            if (alias.asname or alias.name) == name:
                known = getattr(sys.modules.get(f"{node.module}"), alias.name, None)
                file = getattr(getattr(known, "__code__", None), "co_filename", "")
                return known if file.startswith(dirname(f"{mindspore.__file__}")) else None
    return None


def has_librarys_bprop(cell: nn.Cell) -> bool:
    """Return whether a layer of a library says itself what its gradients are.

    They may be no gradients of its construct: what they leave out, the library adds later.
    """
    kind = next((k for k in type(cell).__mro__ if "bprop" in vars(k)), nn.Cell)
    return kind is not nn.Cell and kind.__module__.startswith(_LIBRARIES)


@functools.lru_cache(maxsize=1024)
def _as_defined(kind: type, found: Any) -> Any:
    """Return the construct in the source of a class; what is found where that cannot be told."""
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    own = isinstance(found, FunctionType) and found.__code__.co_filename == file
    named = own and found.__qualname__ == f"{kind.__qualname__}.construct"
    if module is None or file is None or named:
        return found
    try:
        with open(file, encoding="utf-8") as source:
            defined = _definition(ast.parse(source.read()), f"{kind.__qualname__}.construct")
        if defined is None or defined.decorator_list:
            return found
        # In it `super()` is that of its class.
        maker = ast.parse("def make(__class__):\n    return construct").body[0]
        assert isinstance(maker, ast.FunctionDef)
        maker.body.insert(0, defined)
        return _executed(ast.fix_missing_locations(maker), module)["make"](kind)
    except (OSError, SyntaxError, ValueError, NameError):
        return found


def _definition(tree: ast.Module, qualname: str) -> ast.FunctionDef | None:
    """Return the one function that a source defines under a name; None without it."""
    body: list[ast.stmt] = tree.body
    *around, name = qualname.split(".")
    for of_class in around:
        found = [n for n in body if isinstance(n, ast.ClassDef) and n.name == of_class]
        if len(found) != 1:
            return None
        body = found[0].body
    functions = [n for n in body if isinstance(n, ast.FunctionDef) and n.name == name]
    return functions[0] if len(functions) == 1 else None


def _executed(defined: ast.FunctionDef, module: ModuleType) -> dict[str, Any]:
    """Return what a definition makes in a module, by name."""
    made: dict[str, Any] = {}
    exec(compile(ast.Module([defined], []), f"{module.__file__}", "exec"), vars(module), made)
    return made
