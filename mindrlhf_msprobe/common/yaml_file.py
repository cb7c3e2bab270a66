"""YAML files that users write.

They may come from others: a file of a few lines can stand for more values than any memory
holds (an alias of a list of aliases of …), so what is read is bounded. No real file comes near.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.message import Message, SpokenError, message
from mindrlhf_msprobe.errors import ConfigError

_LONGEST = 2 << 20  # bytes of a file
_MOST_VALUES = 200_000  # of a file, each as often as it stands for something
_DEEPEST = 100  # levels; Python's own bound is another in every process: MindSpore raises it
_MOST_NUMBERS = 1_000  # keys of one mapping that are no texts: numbers can be made to collide
_LONGEST_NUMBER = 300  # characters; also of a date
_NUMBERS = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "timestamp"))
_TEXT = "tag:yaml.org,2002:str"


_TRAINERS, _SETTINGS = message("error.trainers_file"), message("error.settings")


def read_yaml(
    path: Path,
    file: Message = _TRAINERS,
    of: Message = _SETTINGS,
    unique: str | None = None,
    items: Message | None = None,
    *,
    apart: bool = False,
) -> Any:
    """Read a YAML file whose top is a mapping.

    Args:
        file, of: what errors call the file, and what it is a mapping of.
        items: what errors call a list, if the top may be one, too.
        unique: the section in which no key may stand twice; None, or without it, the top of the
            file. YAML takes the last of them and says nothing about the others.
        apart: whether keys of unlike types that Python holds equal (1, true, 1.0) are kept apart:
            of such keys all but the first one are texts.

    Raises:
        ConfigError: it is missing, unreadable, too large, not YAML, not a mapping, or holds a key
            twice.
    """
    import yaml

    try:
        with open(path, "rb") as opened:
            raw = opened.read(_LONGEST + 1)
        text = raw.decode("utf-8")
    except FileNotFoundError:
        raise ConfigError.saying("error.no_such_file", path=path, file=file) from None
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a path with a NUL in it
        raise ConfigError.saying("error.no_utf8", path=path, error=error) from None
    if len(raw) > _LONGEST:
        raise ConfigError.saying(
            "error.too_large_yaml", path=path, value=_LONGEST >> 20, of=of, file=file
        )
    try:
        loader = yaml.SafeLoader(text)
        _stop_early(loader)
        if apart:
            _keep_apart(loader)
        top: Any = loader.get_single_node()
        if top is not None:
            _check_size(top)
        content = None if top is None else loader.construct_document(top)
    except _TooLarge as error:
        raise ConfigError.saying("unread.at", path=path, why=error) from None
    except RecursionError:
        deep = message("pattern.nested")
        raise ConfigError.saying("error.no_yaml", path=path, why=deep) from None
    except Exception as error:  # ValueError: 2024-13-45, KeyError: !!bool maybe, …
        known = isinstance(error, (yaml.YAMLError, ValueError))
        tag = message("error.no_tag", kind=type(error).__name__)
        why = str(error) if known else tag
        raise ConfigError.saying("error.no_yaml", path=path, why=why) from None
    if items and isinstance(content, list):
        return content
    if not isinstance(content, Mapping):
        of_kind = message("error.kind_a", kind=type(content).__name__)
        kind = message("error.kind_empty") if content is None else of_kind
        either = message("error.or_items", items=items) if items else ""
        raise ConfigError.saying("error.no_mapping", path=path, of=of, either=either, kind=kind)
    sections = [pair for pair in top.value if pair[0].value == unique]
    _refuse_twice(path, [key for key, _ in sections])
    for node in [value for _, value in sections] or [top]:
        pairs = node.value if isinstance(node.value, list) else []
        _refuse_twice(path, [pair[0] for pair in pairs if isinstance(pair, tuple)])
    return content


def line_of(path: Path, *place: Any) -> int | None:
    """Return the line of a file that has been read in which a key, or a list's item, stands.

    Args:
        place: keys and numbers of items, from the top; None is returned where there is no such.
    """
    import yaml

    try:
        node: Any = yaml.compose(path.read_text(encoding="utf-8"), yaml.SafeLoader)
        line = None
        for own in place:
            if isinstance(node.value[0], tuple):
                key, node = next(pair for pair in node.value if pair[0].value == str(own))
            else:
                key = node = node.value[own]
            line = key.start_mark.line + 1
        return line
    except Exception:  # the file changed, or what is wrong is that nothing stands there
        return None


class _TooLarge(SpokenError):
    """What a file stands for is more than a real one holds."""


def _stop_early(loader: Any) -> None:
    """Let a loader refuse a file of too many or too deep values while it reads them."""
    compose, numbers = loader.compose_node, itertools.count(1)
    level = 0

    def counting(parent: Any, index: Any) -> Any:
        nonlocal level
        if next(numbers) > _MOST_VALUES:
            raise _TooLarge(message("error.yaml_values", most=_MOST_VALUES))
        level += 1
        if level > _DEEPEST:
            raise _TooLarge(message("error.yaml_levels", most=_DEEPEST))
        node = compose(parent, index)
        level -= 1
        return node

    loader.compose_node = counting


def _keep_apart(loader: Any) -> None:
    """Let a loader keep keys of unlike types in one mapping, whatever Python holds equal."""
    plain = loader.construct_mapping

    def construct(node: Any, deep: bool = False) -> Any:
        made = plain(node, deep=deep)  # refuses what cannot be a key; merges what `<<` names
        keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
        if len(made) == len({(type(key), key) for key in keys}):
            return made
        names: dict[tuple[type, Any], Any] = {}
        found: dict[Any, Any] = {}
        for key, (_, value) in zip(keys, node.value):
            name = names.get((type(key), key), key)
            while (type(key), key) not in names and name in found:
                name = f"{name}~" if isinstance(name, str) else str(name)
            names[type(key), key] = name
            found[name] = loader.construct_object(value, deep=deep)
        return found

    loader.construct_mapping = construct


def _check_size(top: Any) -> None:
    """Refuse a file that stands for more values than a real one, before they are made.

    Raises:
        _TooLarge: it does.
        RecursionError: it is nested too deeply.
    """
    counted: dict[int, int] = {}  # node → how many values it stands for; 0 while it is looked at

    def count(node: Any) -> int:
        known = counted.get(id(node))
        line = node.start_mark.line + 1
        if known == 0:
            raise _TooLarge(message("error.yaml_itself", line=line))
        if known is not None:
            return known
        counted[id(node)] = 0
        total = 1
        if isinstance(node.value, str):
            if node.tag in _NUMBERS and len(node.value) > _LONGEST_NUMBER:
                length = len(node.value)
                raise _TooLarge(
                    message("error.yaml_number", line=line, length=length, most=_LONGEST_NUMBER)
                )
        elif node.value and isinstance(node.value[0], tuple):
            if sum(key.tag != _TEXT for key, _ in node.value) > _MOST_NUMBERS:
                raise _TooLarge(message("error.yaml_keys", line=line, most=_MOST_NUMBERS))
            total += sum(count(key) + count(value) for key, value in node.value)
        else:
            total += sum(map(count, node.value))
        if total > _MOST_VALUES:
            raise _TooLarge(message("error.yaml_aliases", line=line, most=_MOST_VALUES))
        counted[id(node)] = total
        return total

    count(top)


def _refuse_twice(path: Path, keys: Sequence[Any]) -> None:
    """Refuse a key that stands twice among these.

    Raises:
        ConfigError: there is one.
    """
    lines: dict[str, int] = {}
    for key in keys:
        line = key.start_mark.line + 1
        if key.value in lines and key.value != "<<":
            raise ConfigError.saying(
                "error.repeated_key", path=path, line=line, value=key.value, value2=lines[key.value]
            )
        lines[str(key.value)] = line


def read_rules(path: str | Path, kind: Message, example: str) -> Mapping[Any, Any]:
    """Return the rules by their patterns, in the order of the file; there is at least one.

    Args:
        kind: what errors call one of them.
        example: a line of such a file.

    Raises:
        ConfigError: the file cannot be read, or holds none.
    """
    file, of = message("error.rules_file", kind=kind), message("error.rules", kind=kind)
    rules = read_yaml(Path(path), file, of)
    if not rules:
        raise ConfigError.saying("error.no_rules", path=path, kind=kind, example=example)
    return rules
