"""The first batches of a data set: names, shapes, dtypes, statistics, fingerprints."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import xxhash

from mindrlhf_msprobe.capture.settings.configurations import reason_of
from mindrlhf_msprobe.capture.tensors.summary import (
    is_tensor,
    is_torch_tensor,
    summarise,
    to_host,
)
from mindrlhf_msprobe.capture.tensors.tree import TreeDescriber
from mindrlhf_msprobe.capture.words import why_raised
from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.storage.arrays.fingerprint import fingerprint
from mindrlhf_msprobe.storage.leaves import Leaf, child_path, is_leaf

_MOST_VALUES = 1000  # of a batch that are listed
_DIGITS = 24  # of the fingerprint of all others
_LONGEST = 80  # characters of a text that are kept


def describe_data(source: str, batches: int) -> dict[str, Any]:
    """Return the first batches of what a function returns, each value by its path.

    What the function prints goes to stderr. No more batches are taken than are described.

    Args:
        source: `module:function`; the module is looked for in the working directory, too.
        batches: how many.

    Raises:
        UsageError: it has another form, there is no such module or function, it raises, or what it
            returns cannot be iterated over or has no batch.
    """
    with contextlib.redirect_stdout(sys.stderr):
        function = _function(source)
        found = _result_of(source, "collect.data_raised", function)
        if found is None:
            raise UsageError.saying("collect.data_nothing", source=source)
        if isinstance(found, (str, bytes)):
            kind = type(found).__name__
            raise UsageError.saying("collect.data_kind", source=source, kind=kind)
        try:
            # A mapping is one batch: iterated over, it would be its keys alone.
            iterator = iter([found] if isinstance(found, Mapping) else found)
        except TypeError:
            kind = type(found).__name__
            raise UsageError.saying("collect.data_kind", source=source, kind=kind) from None
        described: list[dict[str, dict[str, Any]]] = []
        ended = object()
        for _ in range(batches):
            batch = _result_of(source, "collect.data_raised", lambda: next(iterator, ended))
            if batch is ended:
                break
            described.append(_describe(batch))
    if not described:
        raise UsageError.saying("collect.data_empty", source=source)
    return {
        "source": source,
        "asked": batches,
        "exhausted": len(described) < batches,
        "batches": described,
    }


def _function(source: str) -> Callable[[], Any]:
    name, _, function = source.partition(":")
    if not (name and function) or not all(p.isidentifier() for p in name.split(".")):
        raise UsageError.saying("collect.data_form", source=source)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    found = _result_of(source, "collect.data_import", lambda: importlib.import_module(name))
    for part in function.split("."):
        if not hasattr(found, part):
            raise UsageError.saying("collect.no_function", source=source, name=part, module=name)
        found = getattr(found, part)
    if not callable(found):
        kind = type(found).__name__
        raise UsageError.saying("collect.data_not_callable", source=source, kind=kind)
    function_found: Callable[[], Any] = found
    return function_found


def _result_of(source: str, code: str, ask: Callable[[], Any]) -> Any:
    """Return what the user's code returns.

    Raises:
        UsageError: it raises, or would end this process.
    """
    try:
        return ask()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise UsageError.saying(code, source=source, why=reason_of(error)) from error


def _describe(batch: Any) -> dict[str, dict[str, Any]]:
    """Return the values of a batch by their paths; of one that is no structure the path is ""."""
    described = TreeDescriber(
        lambda value: is_tensor(value) or is_torch_tensor(value),
        _tensor,
        _text,
        lambda leaf: leaf if isinstance(leaf, dict) else leaf.to_json(),
    ).describe(batch, "")
    values = _values(described, "")
    found = dict(islice(values, _MOST_VALUES))
    return {**found, **_in_one(values)}


def _in_one(values: Iterator[tuple[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return further values as one: how many there are, and their fingerprint.

    Those of which only the type is known are another one, which is not compared.
    """
    counts = [0, 0]
    digest = xxhash.xxh3_128()
    for path, leaf in values:
        known = not leaf.get("opaque") and ("fingerprint" in leaf or "value" in leaf)
        counts[known] += 1
        said = repr((path, leaf if known else leaf.get("type")))
        digest.update(said.encode("utf-8", errors="backslashreplace"))
    at, found = f"[{_MOST_VALUES}:]", {}
    if any(counts):
        known_by = f"{sum(counts)} #{digest.hexdigest()[:_DIGITS]}"
        found[at] = {"type": "values", "value": known_by}
    if counts[False]:
        found[f"{at} {counts[False]}"] = {"type": "values"}
    return found


def _values(structure: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if is_leaf(structure):
        yield path, structure
        return
    items = structure.items() if isinstance(structure, dict) else enumerate(structure)
    for key, item in items:
        yield from _values(item, child_path(path, key))


def _tensor(value: Any, path: str) -> Any:
    try:
        return summarise(to_host(value))
    except Exception as error:
        return Leaf(type(value).__name__, why=why_raised(error))


def _text(value: str, path: str) -> Any:
    letters = np.frombuffer(value.encode("utf-8", errors="surrogatepass"), np.uint8)
    return {
        "type": "str",
        "length": len(value),
        "fingerprint": fingerprint("UInt8", letters),
        "value": value if len(value) <= _LONGEST else f"{value[:_LONGEST]}…",
    }
