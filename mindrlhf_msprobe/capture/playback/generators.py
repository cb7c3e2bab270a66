"""The states of the process's default random generators: kept as JSON, and put back.

    python     random: `version`, `words` (uint32), `gauss`
    numpy      numpy.random, where it is a Mersenne twister: `words`, `place`, `gauss`
    mindspore  the default generator: `bytes`
    torch      that of the host: `bytes`
    operators  MindSpore's functions that draw by the global seed and counters, as `ops.rand` and
               `ops.dropout` do: `seed`, `counters`
    own        those that the trainer named (own_generators.py)

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
from mindrlhf_msprobe.capture.playback.own_generators import (
    check_state,
    put_own_back,
    states_of_own,
)

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
        found["own"] = states_of_own(own)
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
