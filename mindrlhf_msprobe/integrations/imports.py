"""What is done when modules of a package are imported, without importing them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.log import logger, warn


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
        self._asking: set[str] = set()

    def concerns(self, name: str) -> bool:
        return name == self._package or name.startswith(f"{self._package}.")

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not self.concerns(name) or name in self._asking:
            return None
        self._asking.add(name)
        try:
            for finder in sys.meta_path:
                find = getattr(finder, "find_spec", None)
                spec = None if find is None or finder is self else find(name, path, target)
                if spec is not None:
                    self._see_to(spec)
                    return spec
        finally:
            self._asking.discard(name)
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
