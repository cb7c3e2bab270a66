"""The states of the process's default random generators: kept as JSON, and put back.

    python     random: `version`, `words` (uint32), `gauss`
    numpy      numpy.random, where it is a Mersenne twister: `words`, `place`, `gauss`
    mindspore  the default generator: `bytes`
    torch      that of the host: `bytes`
    operators  MindSpore's functions that draw by the global seed and counters, as `ops.rand` and
               `ops.dropout` do: `seed`, `counters`
    own        those that the trainer named, each with its `kind` and `state`; in a state of these
               integers and floats are texts, as they may have any size, and arrays are their dtype
               and bytes: random.Random (version, words, gauss), numpy.random.Generator and
               RandomState (that of its bit generator), mindspore.Generator and torch.Generator (of
               the host: bytes)

Words and bytes are base64, floats hexadecimal.
"""

from __future__ import annotations

import base64
import random
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import mindspore
import numpy as np

from mindrlhf_msprobe.capture.framework.private import OP_SEEDS, put_operator_seeds
from mindrlhf_msprobe.errors import UsageError

_TWISTER, _WORDS = "MT19937", 624


def states_of_generators(own: Sequence[Any] = ()) -> dict[str, Any]:
    """Return the states of the generators that the process has; none advances.

    Args:
        own: further ones, that the trainer named.
    """
    version, words, gauss = random.getstate()
    found: dict[str, Any] = {
        "python": {"version": version, "words": _kept(words), "gauss": _hex(gauss)}
    }
    state: Any = np.random.get_state(legacy=False)
    if state["bit_generator"] == _TWISTER:
        inner = state["state"]
        gauss = float(state["gauss"]) if state["has_gauss"] else None
        words, place = _kept(inner["key"]), int(inner["pos"])
        found["numpy"] = {"words": words, "place": place, "gauss": _hex(gauss)}
    for name in ("mindspore", "torch"):
        get_state = getattr(sys.modules.get(name), "get_rng_state", None)
        if get_state is not None:
            found[name] = {"bytes": _text(_array(name, get_state()).tobytes())}
    if OP_SEEDS is not None:
        counters = [[*at, count] for at, count in OP_SEEDS.items()]
        found["operators"] = {"seed": mindspore.get_seed(), "counters": counters}
    if own:
        found["own"] = [{"kind": _kind(one), "state": _as_json(_state(one))} for one in own]
    return found


def put_back(states: Mapping[str, Any], own: Sequence[Any] = ()) -> list[str]:
    """Put generators into states that were kept; return which of them this process has.

    Args:
        own: those that the trainer named, as when the states were kept.

    Raises:
        UsageError: the trainer named other ones.
        KeyError, TypeError, ValueError, RuntimeError: they are no such states.
    """
    done = []
    if own and "own" in states:
        put_own_back(own, states["own"])
        done.append("own")
    if "operators" in states:
        _operators(states["operators"])
        done.append("operators")
    for name, put in (("python", _python), ("numpy", _numpy)):
        if name in states:
            put(states[name])
            done.append(name)
    for name in ("mindspore", "torch"):
        module = sys.modules.get(name)
        if name in states and hasattr(module, "set_rng_state"):
            data = np.frombuffer(base64.b64decode(states[name]["bytes"]), np.uint8).copy()
            # MindSpore takes any number of bytes for a state.
            check_state(data.size == _array(name, module.get_rng_state()).size, name)  # type: ignore[union-attr]
            tensor = module.Tensor(data) if name == "mindspore" else module.from_numpy(data)  # type: ignore[union-attr]
            module.set_rng_state(tensor)  # type: ignore[union-attr]
            done.append(name)
    return done


def _python(state: Mapping[str, Any]) -> None:
    words = tuple(map(int, _words(state["words"])))
    random.setstate((state["version"], words, _float(state["gauss"])))


def _numpy(state: Mapping[str, Any]) -> None:
    gauss = _float(state["gauss"])
    words, place = _words(state["words"]), int(state["place"])
    check_state(words.size == _WORDS and 0 <= place <= _WORDS, "numpy")  # numpy does not look
    np.random.set_state(
        {
            "bit_generator": _TWISTER,
            "state": {"key": words, "pos": place},
            "has_gauss": int(gauss is not None),
            "gauss": gauss or 0.0,
        }
    )


def _operators(state: Mapping[str, Any]) -> None:
    seed, counters = state["seed"], {(name, op): n for name, op, n in state["counters"]}
    whole = [*([] if seed is None else [seed]), *counters.values()]
    check_state(all(type(one) is int and one >= 0 for one in whole), "operators")
    put_operator_seeds(seed, counters)


def _array(name: str, state: Any) -> np.ndarray:
    array: np.ndarray = state.asnumpy() if name == "mindspore" else state.numpy()
    return array


def _kept(words: Any) -> str:
    return _text(np.asarray(words, "<u4").tobytes())


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _words(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), "<u4").astype(np.uint32)


def _hex(value: float | None) -> str | None:
    return None if value is None else value.hex()


def _float(text: str | None) -> float | None:
    return None if text is None else float.fromhex(text)


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
    found = [_from_json(one["state"]) for one in states]
    for kind, generator, state in zip(kinds, generators, found):
        check_state(_same_structure(_state(generator), state) and _has_place(state), kind)
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


def _same_structure(a: Any, b: Any) -> bool:
    """Return whether a state has the structure of another one: numpy takes any."""
    if isinstance(a, Mapping):
        return (
            isinstance(b, Mapping)
            and a.keys() == b.keys()
            and all(_same_structure(a[k], b[k]) for k in a)
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


def _as_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _as_json(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode("ascii")
        return {"dtype": value.dtype.str, "bytes": data}
    if value is None or isinstance(value, str):
        return {"text": value}
    if isinstance(value, float):
        return {"float": value.hex()}
    return {"int": hex(value)}


def _from_json(kept: Any) -> Any:
    if "bytes" in kept:
        return np.frombuffer(base64.b64decode(kept["bytes"]), np.dtype(kept["dtype"])).copy()
    if "text" in kept:
        return kept["text"]
    if "float" in kept:
        return float.fromhex(kept["float"])
    if "int" in kept:
        return int(kept["int"], 16)
    return {key: _from_json(item) for key, item in kept.items()}
