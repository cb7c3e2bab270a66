"""How what is concluded becomes JSON, and its messages words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from typing import Any

from mindrlhf_msprobe.common.message import Message, Messages
from mindrlhf_msprobe.storage.arrays.atomic import number_to_json


class Shown:
    """What verdict.json holds with all its fields, under their names."""

    def to_json(self) -> dict[str, Any]:
        """Return the object of verdict.json."""
        return by_fields(self)


def by_fields(found: Any) -> dict[str, Any]:
    """Return the fields of a dataclass under their names, as JSON holds them."""
    return {of.name: as_json(getattr(found, of.name)) for of in fields(found)}


def as_json(value: Any) -> Any:
    """Return what JSON holds of a value, and of those inside it."""
    if isinstance(value, Message):
        return value.as_json()
    if isinstance(value, Enum):
        return value.value
    if hasattr(value, "to_json"):
        return value.to_json()
    if isinstance(value, Mapping):
        return {name: as_json(item) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [as_json(item) for item in value]
    return number_to_json(value)


def words_of(messages: Messages) -> str:
    """Return what messages say, in the language that was chosen, else the locale's."""
    if not messages:
        return ""
    from mindrlhf_msprobe.report.messages import texts_of  # the words are made when asked for

    return texts_of(messages)


def with_codes(name: str, messages: Messages) -> dict[str, Any]:
    """Return messages as JSON, in words and as codes; nothing of none."""
    said = {name: list(map(str, messages)), f"{name}_codes": as_json(messages)}
    return said if messages else {}
