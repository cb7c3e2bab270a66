"""What a process runs with: versions, packages, device, seeds, determinism, environment, weights.

Everything is read, nothing is set; MindSpore is read where the trainer has imported it, and
not imported for it. Of the environment, variables of the field are taken by name, and none whose
name or value could be a secret.
"""

from __future__ import annotations

import os
import platform
import random
import re
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from mindrlhf_msprobe.capture.settings.configurations import to_plain
from mindrlhf_msprobe.capture.tensors.summary import fingerprint_of, to_host
from mindrlhf_msprobe.storage.manifest.random_states import UNKNOWN, with_state
from mindrlhf_msprobe.storage.manifest.variables import (
    recordable,
    variables_of_determinism,
    variables_of_field,
    versions,
)
from mindrlhf_msprobe.storage.writing.ledger import Counted, FaultSink

_LONGEST = 200  # characters of a package's name, of its version

_CONTEXT_DETERMINISM = (
    *("deterministic", "pynative_synchronize", "jit_level", "jit_config"),
    *("enable_graph_kernel", "graph_kernel_flags", "exec_order", "infer_boost"),
)
_ASCEND_DETERMINISM = ("ascend_config",)  # on other devices reading it makes MindSpore warn
_VERSION = re.compile(r"[\w.:+-]{1,64}")


def settings_now(fault: FaultSink) -> dict[str, dict[str, Any]]:
    """Return what can change from moment to moment: device, seeds, determinism, environment.

    What cannot be read is left out; a fault in one section costs that section alone.
    """
    sections: dict[str, Callable[[], dict[str, Any]]] = {
        "device": device,
        "seeds": seeds,
        "determinism": determinism,
        "environment": lambda: variables_of_field(os.environ),
    }
    found = {}
    for name, collect in sections.items():
        with Counted(fault, "lost.section", section=name):
            found[name] = collect()
    return found


def settings_of_process() -> dict[str, dict[str, Any]]:
    """Return all that this process runs with, by section, for a collection.

    A script's processes call it by its name, from child/sitecustomize.py. States of generators are
    left out: of a script that has ended they say how much it drew, of another process nothing.
    """
    found = settings_now(lambda what, error: None)
    states = ("numpy_state", "random_state")
    if "seeds" in found:
        found["seeds"] = {name: v for name, v in found["seeds"].items() if name not in states}
    whole = {**versions(), "cann": cann_version()}
    return {"versions": whole, "packages": packages(), **found}


def packages() -> dict[str, str]:
    """Return every installed package with its version; the first of two with one name."""
    found: dict[str, str] = {}
    for package in metadata.distributions():
        try:
            name, version = str(package.metadata["Name"]), str(package.version)
        except Exception:  # a package whose files are damaged
            continue
        if len(found) < 5000:
            found.setdefault(name.lower().replace("_", "-")[:_LONGEST], version[:_LONGEST])
    return dict(sorted(found.items()))


def device() -> dict[str, Any]:
    """Return what the process computes on; MindSpore's part only where it has been imported."""
    lines = (line.partition(":") for line in _lines_of(Path("/proc/cpuinfo")))
    models = (value.strip() for name, _, value in lines if name.strip() == "model name")
    cpu = next(models, None)
    context = _context("device_target", "device_id", "mode")
    if "mode" in context:
        context["mode"] = {0: "graph", 1: "PyNative"}.get(context["mode"], str(context["mode"]))
    return {
        "machine": platform.machine(),
        "cpu": cpu and cpu[:512],
        "cpu_count": os.cpu_count(),
        **context,
    }


def seeds(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return the seeds that can be read, and fingerprints of the generators that cannot.

    Reading a generator's state does not advance it.
    """
    found: dict[str, Any] = {}
    get_seed = getattr(sys.modules.get("mindspore"), "get_seed", None)
    if get_seed is not None:
        seed = get_seed()
        found["mindspore"] = seed if seed is None or isinstance(seed, int) else str(seed)
    found["PYTHONHASHSEED"] = recordable(environment.get("PYTHONHASHSEED"))
    found["numpy_state"] = _state_fingerprint(np.random.get_state(legacy=False))
    found["random_state"] = _state_fingerprint(random.getstate())
    return found


def determinism(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return what decides whether a computation can be repeated; None is a variable not set."""
    on_ascend = _context("device_target").get("device_target") == "Ascend"
    names = (*_CONTEXT_DETERMINISM, *(_ASCEND_DETERMINISM if on_ascend else ()))
    context = {name: to_plain(value, lambda *_: None) for name, value in _context(*names).items()}
    return context | variables_of_determinism(environment)


def cann_version(
    environment: Mapping[str, str] = os.environ,
    default: Path = Path("/usr/local/Ascend/ascend-toolkit/latest"),
) -> str | None:
    """Return the version of the CANN toolkit, with its build where that is known, or None.

    It is read from the toolkit's own files: `ascend_toolkit_install.info`, `version.cfg` or
    `version.info`.
    """
    roots = [environment.get("ASCEND_HOME_PATH"), environment.get("ASCEND_TOOLKIT_HOME")]
    for root in [*(Path(r) for r in roots if r), default, default.parents[1] / "cann"]:
        for name in (
            f"{platform.machine()}-linux/ascend_toolkit_install.info",
            "ascend_toolkit_install.info",
            "version.cfg",
            "version.info",
            "toolkit/version.info",
            "runtime/version.info",
            "compiler/version.info",
        ):
            version = _version_in(root / name)
            if version:
                return version
    return None


def _version_in(path: Path) -> str | None:
    found: dict[str, str] = {}
    version: str | None
    for line in _lines_of(path):
        name, _, value = line.partition("=")
        value = value.strip().strip("[]\"'")
        if _VERSION.fullmatch(value):
            found.setdefault(name.strip().lower(), value)
    for name in ("toolkit_running_version", "runtime_running_version"):
        if name in found:  # [7.6.0.1.220:8.0.0]
            build, _, version = found[name].rpartition(":")
            return f"{version} ({build})" if build else version
    version = found.get("version_dir") or found.get("version")
    builds = (found.get(name) for name in ("innerversion", "version"))
    build = next((b for b in builds if b and b != version), "")
    return f"{version} ({build})" if version and build else version


def initial_weights(network: Any, fault: FaultSink) -> dict[str, str | None]:
    """Return the fingerprint of each parameter of a network, by the name the network has for it.

    A parameter that several cells share stands once, under its first name. None stands for one
    whose elements are not there: not initialised yet (reading would initialise it, with numbers
    that the training's generator then no longer has), or lost to a fault.
    """
    from mindrlhf_msprobe.capture.cells import ROOT_NAME, named_cells

    found: dict[str, str | None] = {}
    seen: set[int] = set()
    for cell_name, cell in named_cells(network).items():
        prefix = "" if cell_name == ROOT_NAME else f"{cell_name}."
        for name, parameter in cell.parameters_and_names(expand=False):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            found[prefix + name] = None
            with Counted(fault, "lost.initial_weight"):
                if not getattr(parameter, "has_init", False):
                    found[prefix + name] = fingerprint_of(to_host(parameter))
    return found


def _context(*names: str) -> dict[str, Any]:
    """Return settings of MindSpore's context, those it knows, where it has been imported."""
    get_context = getattr(sys.modules.get("mindspore"), "get_context", None)
    found: dict[str, Any] = {}
    if get_context is None:
        return found
    for name in names:
        try:
            found[name] = get_context(name)
        except Exception:  # this version, or this device, has no such setting
            continue
    return found


def _state_fingerprint(state: Any) -> str:
    digest = xxhash.xxh3_64()
    pending = [state]
    while pending:
        part = pending.pop()
        if isinstance(part, Mapping):
            pending += [item for key in sorted(part) for item in (key, part[key])]
        elif isinstance(part, (tuple, list)) and not all(isinstance(p, int) for p in part):
            pending += part
        else:
            digest.update(part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
    return f"xxh3_64:{digest.hexdigest()}"


def _lines_of(path: Path) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 16).splitlines()
    except (OSError, ValueError):
        return []


def states_now(fault: FaultSink) -> dict[str, str]:
    """Return the state of each generator, by the names that `seeds` in run.json has for them.

    MindSpore's default generator is read where it was seeded or drawn from: until then its state
    is another one in each process.
    """
    found: dict[str, str] = {}
    readers = {"numpy": _numpy, "random": lambda: repr(random.getstate()).encode()}
    for of, read in {**readers, "mindspore": _mindspore}.items():
        with Counted(fault, "lost.generator", of=of):
            state = read()
            found[f"{of}_state"] = UNKNOWN if state is None else xxhash.xxh32_hexdigest(state)
    return found


class RandomStates:
    """The states of the random generators when each step so far began, for the manifest.

    A state is kept as eight digits of a hash; equal digits mean equal states. Reading one does not
    advance its generator.
    """

    def __init__(self, fault: FaultSink) -> None:
        self._fault = fault
        self._step: int | None = None
        self.content: dict[str, Any] = {}

    def note(self, step: int) -> bool:
        """Note the states in which a step begins, once a step; return whether it is news."""
        if step == self._step:
            return False
        self._step = step
        for name, state in states_now(self._fault).items():
            self.content = with_state(self.content, name, step, state)
        return True


def _numpy() -> bytes:
    state: Any = np.random.get_state(legacy=False)
    inner = state["state"]
    rest = (state["bit_generator"], state["has_gauss"], state["gauss"])
    if isinstance(inner.get("key"), np.ndarray):
        return bytes(inner["key"].tobytes()) + repr((inner["pos"], *rest)).encode()
    return repr((sorted(inner.items()), *rest)).encode()


_OFFSET = 8  # the bytes of MindSpore's state from here on say how much was drawn


def _mindspore() -> bytes | None:
    mindspore = sys.modules.get("mindspore")
    get_state = getattr(mindspore, "get_rng_state", None)
    if mindspore is None or get_state is None:
        return None
    state: np.ndarray = get_state().asnumpy()
    from mindrlhf_msprobe.capture.framework.private import default_generator_was_seeded

    if not state[_OFFSET:].any() and not default_generator_was_seeded():
        return None
    return bytes(state.tobytes())
