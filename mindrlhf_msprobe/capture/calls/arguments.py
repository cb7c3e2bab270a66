"""What the probe's calls are given, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindrlhf_msprobe.errors import UsageError

MISSING: Any = object()  # data that were not given; None is data


def checked_cell(call: str, network: Any) -> Any:
    """Return `network` if it is a cell.

    Raises:
        UsageError: it is none.
    """
    try:
        from mindrlhf_msprobe.capture.networks.cells import check_cell
    except ImportError as error:
        raise UsageError(
            f"{call} got {type(network).__name__}, which is not a cell here: MindSpore cannot be "
            f"imported ({error})."
        ) from None
    return check_cell(call, network)


def checked_tokens(call: str, token_range: Any) -> tuple[int, int]:
    """Return the first and the last token of a range.

    Raises:
        UsageError: it is none.
    """
    pair = tuple(token_range) if isinstance(token_range, (list, tuple)) else ()
    whole = all(isinstance(n, int) and not isinstance(n, bool) for n in pair)
    if len(pair) != 2 or not whole or not 0 <= pair[0] <= pair[1]:
        raise UsageError(
            f"{call} is {token_range!r}; expected two whole numbers, the first token and the last "
            f"one, 0 or larger."
        )
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
        raise UsageError(
            f"save_data() got {name!r} without data; expected save_data('loss', loss), "
            f"save_data({{'loss': loss}}) or save_data(loss=loss)."
        )
    return items
