"""Notes which random functions a script calls, and where; Python imports it before the script.

It stands alone: only the standard library is imported until the script ends, because the script's
interpreter may be another one. What the functions are given and return stays as it is, and nothing
that goes wrong here reaches the script. It writes `<pid>.<began>.json` into the directory that
`DIRECTORY` names: at the first call of each place, at most twice a second between, and when the
process ends. A process that becomes another program (`os.execv`) leaves a file of each.
"""

from __future__ import annotations

import atexit
import builtins
import functools
import importlib.machinery
import importlib.util
import json
import os
import sys
import threading
import time
import types
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

DIRECTORY = "MINDRLHF_PREFLIGHT_DIRECTORY"

_SETTINGS = "mindrlhf_msprobe.capture.settings.environment"
_MOST_SEEDS = 8  # of one place
_LONGEST = 200  # characters of a seed, of a code line
_SECONDS = 0.5  # between two writes

#: In Python's and numpy's modules all functions are random but these.
_NOT_RANDOM = ("getstate", "get_state", "get_bit_generator", "set_bit_generator", "test")
_DRAWN = (
    *("rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm", "normal"),
    *("bernoulli", "multinomial", "poisson"),
)
_DROPPED = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "gumbel_softmax")
_IN_PLACE = (
    *("bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "normal_", "random_"),
    "uniform_",
)
_OPS = (
    *_DRAWN,
    *_DROPPED,
    *("choice_with_mask", "gamma", "laplace", "log_uniform_candidate_sampler"),
    *("multinomial_with_replacement", "random_categorical", "random_gamma", "random_poisson"),
    *("shuffle", "standard_laplace", "standard_normal", "uniform", "uniform_candidate_sampler"),
)
#: Module, once it is loaded → where its functions are, and which of them are random; None: all.
_FUNCTIONS: dict[str, tuple[tuple[str, Sequence[str] | None], ...]] = {
    "random": (("random", None),),
    "numpy.random": (("numpy.random", None),),
    "mindspore": (
        ("mindspore", ("set_seed", "manual_seed", "seed", "set_rng_state")),
        ("mindspore.ops", _OPS),
        ("mindspore.ops.functional", _OPS),
        ("mindspore.mint", _DRAWN),
        ("mindspore.mint.nn.functional", _DROPPED),
        (
            "mindspore.Tensor",
            (*_IN_PLACE, "bernoulli", "multinomial", "random_categorical", "uniform"),
        ),
        ("mindspore.Generator", ("manual_seed", "seed")),
        ("mindspore.dataset.config", ("set_seed",)),
    ),
    "torch": (
        ("torch", ("manual_seed", "seed", "set_rng_state", *_DRAWN)),
        ("torch.cuda", ("manual_seed", "manual_seed_all")),
        ("torch.nn.functional", _DROPPED),
        ("torch.Tensor", (*_IN_PLACE, "bernoulli", "multinomial")),
        ("torch.Generator", ("manual_seed", "seed")),
    ),
}
_SEEDING = frozenset(("seed", "set_seed", "manual_seed", "manual_seed_all", "default_rng"))
_WORKERS = "multiprocessing.util"
_LAST = -1000  # the priority of what is done when all else is done
#: Of a process that has loaded none of these, the settings are those of the environment alone.
_COUNTING = ("numpy", "mindspore", "torch")


class Calls:
    """The random calls of this process, and their file."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._found: dict[tuple[str, types.CodeType, int], dict[str, Any]] = {}
        self._settings: dict[str, Any] | None = None
        self._is_fork = False
        self._is_library = functools.lru_cache(maxsize=4096)(_is_library)
        self._began_here()

    def _began_here(self) -> None:
        """Begin anew: also in a forked process, whose calls are its own."""
        self._lock = threading.RLock()
        self._inside = threading.local()
        self._written = -_SECONDS
        self._file = f"{os.getpid()}.{time.monotonic_ns()}.json"
        self._found.clear()

    def forked(self) -> None:
        """Begin anew in the child of a fork, whose settings are those of its parent."""
        with suppress(Exception):
            self._settings, self._is_fork = None, True
            self._began_here()

    def call(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a random function; of those that it calls itself nothing is noted."""
        if getattr(self._inside, "now", False):
            return function(*args, **kwargs)
        with suppress(Exception):  # the script is not concerned
            self._note(name, args, kwargs, sys._getframe(2))
        self._inside.now = True
        try:
            return function(*args, **kwargs)
        finally:
            self._inside.now = False

    def _note(self, name: str, args: Any, kwargs: Any, caller: Any) -> None:
        frame = caller
        while frame is not None and self._is_library(frame.f_code.co_filename):
            frame = frame.f_back
        frame = caller if frame is None else frame
        key = name, frame.f_code, frame.f_lineno
        with self._lock:
            one = self._found.get(key)
            if one is None:
                if len(self._found) >= 2000:
                    return
                import linecache

                file, line = frame.f_code.co_filename, frame.f_lineno
                one = self._found[key] = {
                    "function": name,
                    "count": 0,
                    "seeds": [],
                    "file": file,
                    "line": line,
                    "in": frame.f_code.co_name,
                    "code": linecache.getline(file, line).strip()[:_LONGEST],
                }
            one["count"] += 1
            if name.rpartition(".")[2] in _SEEDING:
                given = args[1:] if ".Generator." in name else args
                shown = ", ".join(map(_shown, (*given, *kwargs.values())))[:_LONGEST]
                if shown not in one["seeds"] and len(one["seeds"]) < _MOST_SEEDS:
                    one["seeds"].append(shown)
            if one["count"] == 1 or time.monotonic() - self._written >= _SECONDS:
                self.write()

    def note_settings(self) -> None:
        """Note what this process runs with, where this package is installed for it."""
        try:
            if any(name in sys.modules for name in _COUNTING):
                module = importlib.import_module(_SETTINGS)
                self._settings = module.settings_of_process()
        except BaseException:  # also what a package of another version raises
            self._settings = None

    def end(self) -> None:
        """Write all, as the last thing that the process does."""
        if self._settings is None and not self._is_fork:
            self.note_settings()
        with suppress(Exception):
            self.write(ended=True)

    def write(self, *, ended: bool = False) -> None:
        """Write the file anew."""
        with self._lock:
            self._written = time.monotonic()
            content = {
                "rank": os.environ.get("RANK_ID") or os.environ.get("RANK"),
                "python": ".".join(map(str, sys.version_info[:3])),
                "ended": ended,
                "calls": [*self._found.values()],
                "settings": self._settings,
            }
        path = os.path.join(self._directory, self._file)
        with builtins.open(f"{path}.part", "w", encoding="utf-8", errors="replace") as file:
            json.dump(content, file, default=str)
        os.replace(f"{path}.part", path)


def _shown(value: Any) -> str:
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_shown, value[:_MOST_SEEDS]))}]"
    return type(value).__name__


def _is_library(file: str) -> bool:
    """Return whether a file is Python's own, or an installed package's."""
    if file == __file__ or file.startswith("<frozen"):
        return True
    parts = file.split(os.sep)
    if "site-packages" in parts or "dist-packages" in parts:
        return True
    return file.startswith(os.path.dirname(os.__file__) + os.sep)


class _Counted:
    """Stands for a function not written in Python; it is called, shown and pickled like that."""

    def __init__(self, name: str, function: Any, calls: Calls) -> None:
        self._counted = name, function, calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name, function, calls = self._counted
        return calls.call(name, function, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "_counted":  # of an object that is being made
            raise AttributeError(name)
        return getattr(self._counted[1], name)

    def __repr__(self) -> str:
        return repr(self._counted[1])

    def __eq__(self, other: object) -> bool:
        own = other._counted[1] if isinstance(other, _Counted) else other
        return bool(self._counted[1] == own)

    def __hash__(self) -> int:
        return hash(self._counted[1])

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced = self._counted[1].__reduce_ex__(protocol)
        return reduced if not isinstance(reduced, str) else self._counted[1].__qualname__


def _counted(name: str, function: Any, calls: Calls, *, is_method: bool) -> Any:
    if not (is_method or isinstance(function, types.FunctionType)):
        return _Counted(name, function, calls)

    # A graph compiler takes the source of the function that is wrapped, and counts nothing.
    @functools.wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        return calls.call(name, function, args, kwargs)

    return counted


def _replace(module: str, calls: Calls) -> None:
    """Let the random functions of a module that was loaded be counted."""
    made: dict[int, Any] = {}  # one stand-in for each function, however many names it has
    for path, names in _FUNCTIONS[module]:
        home: Any = sys.modules[module]
        for part in path.split(".")[module.count(".") + 1 :]:
            home = getattr(home, part, None)
        if home is None:
            continue
        is_class = isinstance(home, type)
        public = [n for n in vars(home) if not n.startswith("_") and n not in _NOT_RANDOM]
        for name in public if names is None else names:
            function = getattr(home, name, None) if is_class else vars(home).get(name)
            if function is None or isinstance(function, type) or not callable(function):
                continue
            stand_in = made.get(id(function)) or _counted(
                f"{path}.{name}", function, calls, is_method=is_class
            )
            made[id(function)] = stand_in
            with suppress(Exception):  # a class that cannot be changed
                setattr(home, name, stand_in)


class _AfterImport:
    """A finder that finds nothing itself: it waits until certain modules have been loaded."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._waiting = {*_FUNCTIONS, _WORKERS} - {*sys.modules}

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Find one of those modules by the other finders, to be told when it is loaded."""
        if name not in self._waiting:
            return None
        self._waiting.discard(name)
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                with suppress(Exception):  # a loader that cannot be told
                    self._watch(name, spec.loader)
                return spec
        return None

    def _watch(self, name: str, loader: Any) -> None:
        load = loader.exec_module

        def exec_module(module: Any) -> None:
            with suppress(AttributeError):
                del loader.exec_module
            load(module)
            with suppress(Exception):
                if name == _WORKERS:  # forked ones end without `atexit`, and write at their end
                    module.register_after_fork(
                        self._calls, lambda of: module.Finalize(of, of.end, exitpriority=_LAST)
                    )
                    return
                _replace(name, self._calls)
                if name == "mindspore":  # before MindSpore ends, which then answers no more
                    atexit.register(self._calls.note_settings)

        loader.exec_module = exec_module


def _install(directory: str) -> None:
    calls = Calls(directory)
    atexit.register(calls.end)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=calls.forked)
    before = [name for name in _FUNCTIONS if name in sys.modules]
    sys.meta_path.insert(0, _AfterImport(calls))
    for name in before:
        _replace(name, calls)
    importlib.import_module("random")  # which numpy and MindSpore load anyway


def _hand_on() -> None:
    """Import the `sitecustomize` that Python would have found without this one."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get(DIRECTORY):
    with suppress(Exception):
        _install(os.environ[DIRECTORY])
_hand_on()
