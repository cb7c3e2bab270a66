"""What a function keeps in local variables, saved as key data, in PyNative mode and in graphs.

A loss keeps what it is made of in variables of its construct. A copy of the function, made from its
source, is put in its place on one cell; it is the same but for a call of `save` behind the
statement that gives a variable its last value.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType
from typing import Any

from mindspore import nn

from mindrlhf_msprobe.capture.cells import COPY_OF
from mindrlhf_msprobe.capture.framework.generated_modules import compile_source
from mindrlhf_msprobe.capture.framework.hooks import left_out_of_copies
from mindrlhf_msprobe.capture.graph.compiled import save
from mindrlhf_msprobe.errors import NotThere

#: The name in the function's module under which its copy finds `save`.
_SAVE = "mindrlhf_msprobe_save"


#: A local variable, and the key under which its value is saved. "name()" is the variable that is
#: assigned the result of that method of the cell.
Variable = tuple[str, str]


class SavedLocals:
    """The variables of one method of a cell that are saved.

    Args:
        cell: it alone gets the copy of the method; its class keeps its own.
        method: e.g. "construct".
        variables: for each key the first one that the method has counts.
        compiled: whether MindSpore compiles the method; then the copy has lines of its own,
            else its lines are those of the method, in tracebacks too.

    Attributes:
        keys: the keys that are saved from now on.
        saved_already: the keys that the method itself saves, by `save(…, "key", …)`.

    Raises:
        LookupError: the method is missing, or has no source that can be copied.
    """

    def __init__(
        self, cell: nn.Cell, method: str, variables: Sequence[Variable], *, compiled: bool
    ) -> None:
        self._cell, self._method = cell, method
        original = getattr(getattr(cell, method, None), "__func__", None)
        if original is None:
            raise NotThere.saying("trainer.no_method", of=type(cell).__name__, method=method)
        source = _Source.from_function(original)
        self.saved_already = frozenset(source.saved())
        wanted = [(name, key) for name, key in variables if key not in self.saved_already]
        self.keys = frozenset(source.add_saves(wanted))
        self._had = vars(cell).get(method)
        self._own: Any = None
        if self.keys:
            self._own = MethodType(source.function(compiled=compiled), cell)
            vars(cell)[method] = self._own
            left_out_of_copies(cell, self._take_out)

    def remove(self) -> None:
        """Give the cell its own method back; what was compiled keeps its probes."""
        self._take_out(vars(self._cell))

    def _take_out(self, attributes: dict[str, Any]) -> None:
        if self._own is not None and attributes.get(self._method) is self._own:
            del attributes[self._method]
            if self._had is not None:
                attributes[self._method] = self._had


def copy_that_saves(function: Any, variables: Sequence[Variable]) -> FunctionType:
    """Return a copy of a Python function that saves some of its variables.

    Raises:
        LookupError: it has none of them, or no source that can be copied.
    """
    source = _Source.from_function(function)
    if not source.add_saves(variables):
        names = [name for name, _ in variables]
        raise NotThere.saying("trainer.no_variables", of=function.__qualname__, names=names)
    return source.function(compiled=False)


@dataclass
class _Source:
    """The source of a function, as a tree: of a module, and of the function in it."""

    original: FunctionType
    module: ast.Module
    tree: ast.FunctionDef

    @classmethod
    def from_function(cls, function: Any) -> _Source:
        """Parse a function's source.

        Raises:
            LookupError: there is none, or a copy of it would be another function.
        """
        name = getattr(function, "__qualname__", repr(function))
        if not isinstance(function, FunctionType) or hasattr(function, "__wrapped__"):
            raise NotThere.saying("trainer.decorated", of=name)
        if function.__code__.co_freevars:
            raise NotThere.saying("trainer.closure", of=name)
        try:
            lines, first = inspect.getsourcelines(function)
            # In a block a method keeps its columns, which tracebacks show.
            head = "if True:\n" if lines[0][:1].isspace() else "\n"
            body = ast.parse(head + "".join(lines)).body
        except (OSError, TypeError, SyntaxError) as error:
            raise NotThere.saying("trainer.no_source", of=name, error=error) from None
        module = ast.Module(body[0].body if isinstance(body[0], ast.If) else body, [])
        tree = module.body[0]
        if not isinstance(tree, ast.FunctionDef) or tree.decorator_list:
            raise NotThere.saying("trainer.no_plain_function", of=name)
        names = (getattr(n, "id", None) or getattr(n, "attr", None) for n in ast.walk(module))
        if any(f"{n}".startswith("__") and not f"{n}".endswith("__") for n in names):
            raise NotThere.saying("trainer.mangled_names", of=name)
        ast.increment_lineno(module, first - 2)
        return cls(function, module, tree)

    def saved(self) -> Iterator[str]:
        """Yield the keys that the function saves itself with our `save`, if they are constants."""
        if self.original.__globals__.get("save") is not save:
            return
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and _name_of(node.func) == "save" and len(node.args) > 1:
                key = node.args[1]
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield key.value

    def add_saves(self, variables: Sequence[Variable]) -> list[str]:
        """Save each variable behind the statement that assigns it last; return their keys."""
        parameters = {arg.arg for arg in ast.walk(self.tree.args) if isinstance(arg, ast.arg)}
        found: dict[str, str] = {}
        for name, key in variables:
            own = self._made_by(name.removesuffix("()")) if name.endswith("()") else name
            if key in found or own is None:
                continue
            if any(_assigns(statement, own) for statement in self.tree.body):
                found[key] = own
        saved = [
            key
            for key, name in found.items()
            if _save_last(self.tree.body, name, key, name in parameters)
        ]
        ast.fix_missing_locations(self.module)
        return saved

    def _made_by(self, method: str) -> str | None:
        """Return the variable that is assigned the result of a method of the cell."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                target = node.targets[0]
                if _name_of(node.value.func) == f"self.{method}" and isinstance(target, ast.Name):
                    return target.id
        return None

    def function(self, *, compiled: bool) -> FunctionType:
        """Return a function of the tree, in the place of the original."""
        original = self.original
        original.__globals__.setdefault(_SAVE, save)
        if compiled:
            head = (
                f"# {original.__qualname__} of {original.__module__}, with calls that save values."
            )
            code = compile_source(f"{head}\n{ast.unparse(self.module)}\n")
        else:
            code = compile(self.module, original.__code__.co_filename, "exec")
        name = original.__name__
        own = next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name)
        copy = FunctionType(own, original.__globals__, original.__name__, original.__defaults__)
        for kept in ("__kwdefaults__", "__qualname__", "__module__", "__doc__", "__annotations__"):
            setattr(copy, kept, getattr(original, kept))
        setattr(copy, COPY_OF, original)
        return copy


def _name_of(node: ast.expr) -> str:
    """Return a name, or one of an attribute, as it stands in the source."""
    return ast.unparse(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""


def _save_last(block: list[ast.stmt], name: str, key: str, defined: bool) -> bool:
    """Put a call of `save` behind the last assignment of a variable in a block.

    Args:
        defined: whether it has a value before the block.

    Returns:
        whether a call was put anywhere.
    """
    at = max(i for i, statement in enumerate(block) if _assigns(statement, name))
    before = defined or any(_always_assigns(statement, name) for statement in block[:at])
    if (before or _always_assigns(block[at], name)) and not _always_leaves(block[at]):
        call = ast.parse(f"{_SAVE}('', {key!r}, {name})").body[0]
        for node in ast.walk(call):
            ast.copy_location(node, block[at])
        block.insert(at + 1, call)
        return True
    inner = [b for b in _blocks_of(block[at]) if any(_assigns(each, name) for each in b)]
    put = [_save_last(each, name, key, before) for each in inner]
    return bool(put) and all(put)


def _blocks_of(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for field in ("body", "orelse", "finalbody"):
        inner = getattr(statement, field, None)
        if inner and not isinstance(statement, _SCOPES):
            yield inner
    for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield part.body


#: What has variables of its own.
_SCOPES = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)


def _assigns(statement: ast.AST, name: str) -> bool:
    """Return whether a statement, or one inside it, gives a variable a value, or an element one."""
    if isinstance(statement, _SCOPES):
        return False
    if isinstance(getattr(statement, "ctx", None), ast.Store):
        stored = statement
        while isinstance(stored, ast.Subscript):
            stored = stored.value
        if isinstance(stored, ast.Name) and stored.id == name:
            return True
    return any(_assigns(child, name) for child in ast.iter_child_nodes(statement))


def _always_assigns(statement: ast.stmt, name: str) -> bool:
    """Return whether a variable has a value once a statement has run."""
    if isinstance(statement, ast.If):
        return all(
            any(_always_assigns(inner, name) for inner in branch)
            for branch in (statement.body, statement.orelse)
        )
    if isinstance(statement, ast.With):
        return any(_always_assigns(inner, name) for inner in statement.body)
    simple = (ast.Assign, ast.AnnAssign, ast.AugAssign)
    return isinstance(statement, simple) and _assigns(statement, name)


def _always_leaves(statement: ast.stmt) -> bool:
    """Return whether nothing behind a statement is ever reached."""
    if isinstance(statement, ast.If):
        branches = statement.body, statement.orelse
        return all(any(map(_always_leaves, branch)) for branch in branches)
    if isinstance(statement, ast.With):
        return any(map(_always_leaves, statement.body))
    return isinstance(statement, (ast.Return, ast.Raise, ast.Continue, ast.Break))
