"""The states of random generators that a trainer names: kept as JSON, and put back.

    random.Random             `state`: version, words, gauss
    numpy.random.Generator    `state`: that of its bit generator
    numpy.random.RandomState  likewise
    mindspore.Generator       `state`: bytes
    torch.Generator           likewise, of the host

Each says its `kind`. In a state, integers and floats are texts, as they may have any size; arrays
are their dtype and bytes as base64.
"""

from __future__ import annotations

import base64
import random
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mindrlhf_msprobe.errors import UsageError

_FRAMEWORKS = ("mindspore", "torch")
#: What stands in an array of words: numpy and MindSpore do not look at it themselves.
_PLACES = {"MT19937": ("pos", 624), "Philox": ("buffer_pos", 4)}


def check_own(generators: Any) -> None:
    """Refuse what is no list of generators whose state can be kept.

    Raises:
        UsageError: it is none; what can be kept is said.
    """
    listed = isinstance(generators, (list, tuple))
    odd = next((one for one in generators if not _kind(one)), None) if listed else generators
    if not listed or odd is not None:
        raise UsageError.saying("error.playback_no_generator", name=type(odd).__name__)


def states_of_own(generators: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the states of generators; none advances."""
    return [{"kind": _kind(one), "state": _kept(_state(one))} for one in generators]


def put_own_back(generators: Sequence[Any], states: Any) -> None:
    """Put generators into states that were kept: all of them, or none.

    Raises:
        UsageError: there are other generators than were recorded; both are shown.
        KeyError, TypeError, ValueError, RuntimeError: they are no such states.
    """
    kinds = [_kind(one) for one in generators]
    recorded = [one["kind"] for one in states]
    if kinds != recorded:
        a, b = (", ".join(map(str, some)) for some in (recorded, kinds))
        raise UsageError.saying("error.playback_generators", a=a, b=b)
    found = [_read(one["state"]) for one in states]
    for kind, generator, state in zip(kinds, generators, found):
        check_state(_alike(_state(generator), state) and _has_place(state), kind)
    for generator, state in zip(generators, found):
        _put(generator, state)


def _kind(generator: Any) -> str | None:
    if isinstance(generator, random.Random) and not isinstance(generator, random.SystemRandom):
        return "random.Random"
    if isinstance(generator, np.random.Generator):
        return f"numpy.random.Generator({type(generator.bit_generator).__name__})"
    if isinstance(generator, np.random.RandomState):
        return "numpy.random.RandomState"
    for name in _FRAMEWORKS:
        own = getattr(sys.modules.get(name), "Generator", None)
        if own is not None and isinstance(generator, own):
            return f"{name}.Generator"
    return None


def _state(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        version, words, gauss = generator.getstate()
        return {"version": version, "words": np.array(words, np.uint32), "gauss": gauss}
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    state = generator.get_state()
    return state.numpy() if _is_torch(generator) else state.asnumpy()


def _put(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate((state["version"], tuple(map(int, state["words"])), state["gauss"]))
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    elif _is_torch(generator):
        generator.set_state(sys.modules["torch"].from_numpy(state))
    else:
        generator.set_state(sys.modules["mindspore"].Tensor(state))


def _is_torch(generator: Any) -> bool:
    return _kind(generator) == "torch.Generator"


def _alike(a: Any, b: Any) -> bool:
    """Return whether a state has the structure of another one: numpy takes any."""
    if isinstance(a, Mapping):
        return (
            isinstance(b, Mapping) and a.keys() == b.keys() and all(_alike(a[k], b[k]) for k in a)
        )
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and (a.dtype, a.shape) == (b.dtype, b.shape)
    if isinstance(a, str):
        return bool(a == b)
    if isinstance(a, int):
        return type(b) is int and b >= 0
    return b is None or isinstance(b, float)


def _has_place(state: Any) -> bool:
    """Return whether the place in an array of words lies in it."""
    if not isinstance(state, Mapping):
        return True
    name, last = _PLACES.get(state.get("bit_generator", ""), ("", 0))
    return not name or 0 <= {**state, **state["state"]}[name] <= last


def check_state(fits: bool, name: Any) -> None:
    """Refuse a state that is none of a generator.

    Raises:
        ValueError: it does not fit; the generator is named.
    """
    if not fits:
        raise ValueError(name)


def _kept(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _kept(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode("ascii")
        return {"dtype": value.dtype.str, "bytes": data}
    if value is None or isinstance(value, str):
        return {"text": value}
    if isinstance(value, float):
        return {"float": value.hex()}
    return {"int": hex(value)}


def _read(kept: Any) -> Any:
    if "bytes" in kept:
        return np.frombuffer(base64.b64decode(kept["bytes"]), np.dtype(kept["dtype"])).copy()
    if "text" in kept:
        return kept["text"]
    if "float" in kept:
        return float.fromhex(kept["float"])
    if "int" in kept:
        return int(kept["int"], 16)
    return {key: _read(item) for key, item in kept.items()}
