"""Methods of a trainer's classes, wrapped without an edit of its source.

What goes around a method is a generator function that takes the method's arguments and yields once
where the method runs (as a contextlib.contextmanager does; `yield` gives the method's result):

    def around_train(worker, *args, **kwargs):
        with probe.phase("actor_update"):
            result = yield

    patches = Patches(message("trainer.grpo"))
    patches.wrap(TrainWorker, "train", around_train, without=message("trainer.no_update"))
    patches.record(session)

The method runs exactly once, its result and its exception pass through as they are, and a fault in
what goes around it is logged, not raised.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Generator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.errors import NotThere
from mindrlhf_msprobe.log import logger, warn

if TYPE_CHECKING:
    from mindrlhf_msprobe.integrations.session import Session
    from mindrlhf_msprobe.probe import Probe

#: The name in a module of MindRLHF that says whether it found msprobe, whose `save` it then calls.
CALLS_MSPROBE = "ENABLE_MSPROBE"
#: What runs around one call of a method.
Part = Generator[None, Any, None]
Around = Callable[..., Part]

#: The trainers' classes that were prepared in this process, by name.
PREPARED: list[str] = []

_MARK = "__mindrlhf_msprobe_wraps__"


class Patches:
    """The methods of one trainer that were wrapped, and those that were not found.

    Args:
        trainer: whose they are, for messages.

    Attributes:
        session: the training that is recorded; None: none.
        strict: whether faults in what goes around a method are raised.
    """

    def __init__(self, trainer: str | Message) -> None:
        self.trainer = trainer
        self._missing: dict[Message, bool] = {}  # what is said of it → whether it is news
        self._lost: dict[str, Message] = {}
        self.session: Session | None = None
        self.strict = False
        self._faults: set[tuple[str, str]] = set()
        self._copies: dict[Any, Callable[..., Any]] = {}

    @property
    def probe(self) -> Probe | None:
        """The probe of the training that is recorded."""
        return None if self.session is None else self.session.probe

    def record(self, session: Session | None) -> None:
        """Take a training that is recorded from now on, and say what was not found; or none."""
        self.session = session
        if session is not None:
            self.strict = session.probe.config.strict
            self.report(session.note_lost)

    def while_recorded(self, around: Around) -> Around:
        """Return what calls `around` with the training that is recorded first; else does nothing.

        For `wrap`.
        """

        def only_then(*args: Any, **kwargs: Any) -> Any:
            return iter(()) if self.session is None else around(self.session, *args, **kwargs)

        return only_then

    def wrap(
        self,
        owner: Any,
        name: str,
        around: Around,
        *,
        without: str | Message,
        lost: Sequence[str] = (),
        raises: tuple[type[Exception], ...] = (),
    ) -> bool:
        """Let `around` go around each call of `owner.name`; return whether it does.

        A method that this package wraps already stays as it is.

        Args:
            owner: a class or a module.
            name: the method or function.
            around: a generator function that takes the same arguments and yields once.
            without: what is not recorded where the name is missing.
            lost: the phases and keys of key data that this means, by name.
            raises: what `around` may raise because it is for the user, e.g. ConfigError.
        """
        where = f"{getattr(owner, '__name__', owner)}.{name}"
        found = inspect.getattr_static(owner, name, None)
        kind = type(found) if isinstance(found, (staticmethod, classmethod)) else None
        function = found.__func__ if isinstance(found, (staticmethod, classmethod)) else found
        if not callable(function):
            self.note_missing(where, without, lost)
            return False
        if getattr(function, _MARK, None) is not None:
            return False

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            part = None
            try:
                part = around(*args, **kwargs)
                next(part)
            except Exception as error:
                part = None
                if not isinstance(error, StopIteration):  # it had nothing to do
                    self._fault(where, error, raises)
            try:
                result = self._copies.get(function, function)(*args, **kwargs)
            except BaseException as error:
                if part is not None:
                    raised = error.__traceback__
                    self._end(where, part, error)
                    error.__traceback__ = raised  # without the frames of what runs around it
                raise
            if part is not None:
                self._continue(where, part, result, raises)
            return result

        setattr(wrapped, _MARK, function)
        setattr(owner, name, wrapped if kind is None else kind(wrapped))
        return True

    def replace(self, owner: Any, name: str, instead: Callable[..., Any]) -> None:
        """Let `instead` run in the place of a class method of `owner`; what it raises is said once.

        Args:
            instead: takes the arguments behind the class. Training goes on where it fails.
        """
        found = inspect.getattr_static(owner, name, None)
        if not isinstance(found, classmethod) or hasattr(found.__func__, _MARK):
            return
        where = f"{owner.__name__}.{name}"

        @functools.wraps(found.__func__)
        def replaced(_kind: type, *args: Any, **kwargs: Any) -> None:
            try:
                instead(*args, **kwargs)
            except Exception as error:
                self._fault(where, error, ())

        setattr(replaced, _MARK, found.__func__)
        setattr(owner, name, classmethod(replaced))

    def note_missing(self, what: str, without: str | Message, lost: Sequence[str] = ()) -> None:
        """Remember that `what` was not found, and what follows from it."""
        said = message("trainer.means", what=what, otherwise=without)
        if said not in self._missing:
            self._missing[said] = True
        for name in lost:
            self._lost.setdefault(name, message("trainer.missing", what=what))

    def run_instead(self, owner: Any, name: str, copy: Callable[..., Any] | None) -> Any:
        """Let a copy of a method that `wrap` wrapped run in its place, until it is None again.

        Returns:
            the method itself.

        Raises:
            LookupError: the method is not wrapped.
        """
        wrapped = inspect.getattr_static(owner, name, None)
        function = getattr(wrapped, _MARK, None)
        if function is None:
            raise NotThere.saying("trainer.no_method", of=owner.__name__, method=name)
        if copy is None:
            self._copies.pop(function, None)
        else:
            self._copies[function] = copy
        return function

    def play(self, owner: Any, name: str) -> None:
        """Let what a method that `wrap` wrapped returns be a rollout: recorded, or played.

        Its batch is what the method is given behind `self`.

        Raises:
            LookupError: the method is not wrapped.
        """
        function = self.run_instead(owner, name, None)

        def through(instance: Any, *args: Any, **kwargs: Any) -> Any:
            if (probe := self.probe) is None:
                return function(instance, *args, **kwargs)

            def generate(batch: dict[str, Any]) -> Any:
                return function(instance, *batch["args"], **batch["kwargs"])

            return probe.rollout(generate, {"args": args, "kwargs": kwargs})

        self.run_instead(owner, name, through)

    def report(self, note: Callable[[str, Message], None]) -> None:
        """Log what was not found, each once.

        Args:
            note: takes each phase and key that is lost, and why; for every training anew.
        """
        new = [said for said, news in self._missing.items() if news]
        if new:
            warn("log.other_version", trainer=self.trainer, missing=new)
        self._missing = dict.fromkeys(self._missing, False)
        for name, why in self._lost.items():
            note(name, why)

    def _continue(
        self, where: str, part: Any, result: Any, raises: tuple[type[Exception], ...]
    ) -> None:
        try:
            part.send(result)
        except StopIteration:
            return
        except Exception as error:
            self._fault(where, error, raises)
        else:
            part.close()

    def _end(self, where: str, part: Any, error: BaseException) -> None:
        """Tell it that the method raised; the method's own exception is the one that passes on."""
        try:
            part.throw(error)
        except StopIteration:
            return
        except BaseException as fault:
            if fault is not error and isinstance(fault, Exception):
                self._log_fault(where, fault)
        else:
            part.close()

    def _fault(self, where: str, error: Exception, raises: tuple[type[Exception], ...]) -> None:
        if self.strict or isinstance(error, raises):
            raise error
        self._log_fault(where, error)

    def _log_fault(self, where: str, error: Exception) -> None:
        kind = (where, type(error).__name__)
        if kind not in self._faults:
            self._faults.add(kind)
            warn("log.around_failed", where=where, kind=type(error).__name__, error=error)


def has_trainer() -> bool:
    """Return whether a trainer that is known was imported and prepared."""
    return any(name.endswith("Trainer") for name in PREPARED)


def when_imported(package: str, prepare: Callable[[ModuleType], None]) -> None:
    """Call `prepare` with every module of a package, now where it is there, else when it is.

    It is called when the module has run. What it raises is logged and passes no further.
    """
    watch = _Watch(package, prepare)
    sys.meta_path.insert(0, watch)
    for name, module in list(sys.modules.items()):
        running = getattr(getattr(module, "__spec__", None), "_initializing", False)
        if watch.concerns(name) and isinstance(module, ModuleType) and not running:
            watch.prepare(module)


class _Watch:
    """A finder that finds nothing itself: it lets the others find, and sees to the loading."""

    def __init__(self, package: str, prepare: Callable[[ModuleType], None]) -> None:
        self._package = package
        self._prepare = prepare
        self._searched: set[str] = set()

    def concerns(self, name: str) -> bool:
        return name == self._package or name.startswith(f"{self._package}.")

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not self.concerns(name) or name in self._searched:
            return None
        self._searched.add(name)
        try:
            for finder in sys.meta_path:
                find = getattr(finder, "find_spec", None)
                spec = None if find is None or finder is self else find(name, path, target)
                if spec is not None:
                    self._see_to(spec)
                    return spec
        finally:
            self._searched.discard(name)
        return None

    def _see_to(self, spec: ModuleSpec) -> None:
        """Let the loader prepare the module once, when it has run."""
        loader = spec.loader
        run = getattr(loader, "exec_module", None)
        if loader is None or run is None:
            return

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # of this instance: its class has its own
            run(module)
            self.prepare(module)

        try:
            loader.exec_module = exec_module  # type: ignore[method-assign]
        except AttributeError:  # a loader that takes no attributes, e.g. of frozen modules
            known = {"name": spec.name, "loader": repr(loader)}
            logger.debug("%s", message("log.import_unnoticed", **known))

    def prepare(self, module: ModuleType) -> None:
        try:
            self._prepare(module)
        except Exception as error:
            warn("log.not_prepared", name=module.__name__, kind=type(error).__name__, error=error)
