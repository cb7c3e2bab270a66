"""What the probe's calls are given, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindrlhf_msprobe.errors import UsageError

MISSING: Any = object()  # data that were not given; None is data


def checked_cell(call: str, network: Any) -> Any:
    """Return `network` if it is a cell, or None.

    Raises:
        UsageError: it is neither.
    """
    if network is None:
        return None
    try:
        from mindspore import nn
    except ImportError as error:
        raise UsageError.saying(
            "error.no_mindspore", call=call, name=type(network).__name__, error=error
        ) from None
    if not isinstance(network, nn.Cell):
        kind = f"class {network.__name__}" if isinstance(network, type) else type(network).__name__
        raise UsageError.saying("error.no_cell", call=call, kind=kind)
    return network


def checked_tokens(call: str, token_range: Any) -> tuple[int, int]:
    """Return the first and the last token of a range.

    Raises:
        UsageError: it is none.
    """
    pair = tuple(token_range) if isinstance(token_range, (list, tuple)) else ()
    whole = all(isinstance(n, int) and not isinstance(n, bool) for n in pair)
    if len(pair) != 2 or not whole or not 0 <= pair[0] <= pair[1]:
        raise UsageError.saying("error.token_range", call=call, token_range=token_range)
    return pair


def key_data_items(name: Any, data: Any, named: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """Return the keys and values of one of the three forms of `save_data`.

    Raises:
        UsageError: it is none of them.
    """
    items = list(named.items())
    if data is not MISSING:
        return [(name, data), *items]
    if isinstance(name, Mapping):
        return [*name.items(), *items]
    if name is not None or not named:
        raise UsageError.saying("error.key_without_data", name=name)
    return items
