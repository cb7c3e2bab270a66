"""Regular expressions that may come from a file: matched in time linear in the name.

Python's `re` can need longer than a life for one name. RE2 cannot, but it writes some things
differently, and means something else by others: `\\d` and `\\w` are ASCII there, `\\Z` is unknown,
`$` never stands before a newline at the end. So a pattern is read by Python's own parser and
written anew for RE2, with Python's meaning; what RE2 has no means for is refused. Two differences
stay: `\\b` and `\\B` know ASCII letters, digits and `_` only, and where a name ends in a newline,
nothing behind a `$` can match that newline.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from mindrlhf_msprobe.common.message import SpokenError

_DEEPEST = 100  # groups in each other
_LONGEST = 4096  # characters of a pattern
_MEMORY = 4 << 20  # bytes of a pattern as RE2 has it
_SET_MEMORY = 256 << 20  # bytes that the patterns of a whole file, and what they met, may take

_UNICODE = {
    "DIGIT": r"\p{Nd}",
    "WORD": r"\p{L}\p{N}_",
    "SPACE": r"\t-\r\x{1c}-\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}"
    r"\x{205f}\x{3000}",
    "NOT_DIGIT": r"\P{Nd}",
    "NOT_SPACE": r"\x{0}-\x{8}\x{e}-\x{1b}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}"
    r"\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}"
    r"\x{3001}-\x{10ffff}",
}
_ASCII = {
    "DIGIT": "0-9",
    "WORD": "0-9A-Z_a-z",
    "SPACE": r"\t-\r\x{20}",
    "NOT_DIGIT": r"\x{0}-\x{2f}\x{3a}-\x{10ffff}",
    "NOT_WORD": r"\x{0}-\x{2f}\x{3a}-\x{40}\x{5b}-\x{5e}\x{60}\x{7b}-\x{10ffff}",
    "NOT_SPACE": r"\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{10ffff}",
}
#: What linear matching cannot do.
_REFUSED = frozenset(
    ("ASSERT", "ASSERT_NOT", "GROUPREF", "GROUPREF_EXISTS", "ATOMIC_GROUP", "POSSESSIVE_REPEAT")
)


class PatternError(SpokenError, ValueError):
    """A pattern that cannot be used: why, and what to do, without the pattern."""


class Pattern:
    """A regular expression with Python's syntax and meaning, searched in linear time.

    Args:
        text: the pattern.

    Raises:
        PatternError: it is no regular expression, or needs what linear matching cannot do.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._regexp: Any = _compiled(_written(text))

    def __reduce__(self) -> tuple[Any, ...]:
        return Pattern, (self.text,)

    def search(self, name: str) -> bool:
        """Return whether the pattern matches anywhere in a name."""
        return _found(self._regexp, name)


class Renaming:
    """A pattern over whole names, and the name that takes their place.

    Args:
        source: the pattern.
        target: the new name, with `\\1` or `\\g<name>` for what a group matched, as in `re.sub`.

    Raises:
        PatternError: as for `Pattern`, or the target names a group that is not there.
    """

    def __init__(self, source: str, target: str) -> None:
        self.written = _written(source, whole=True)
        self._regexp: Any = _compiled(self.written, captures=True)
        names = {number: name for name, number in _parsed(source).state.groupdict.items()}
        if "inside" in names.values():
            raise PatternError.saying("pattern.name_taken")
        self._inside = self._regexp.groups  # the last group: what lies inside the cell
        self._parts = _template(target, [names.get(n + 1) for n in range(self._inside - 1)])

    def rename(self, name: str) -> str | None:
        """Return the new name of a cell, or of one inside it; None if it is not meant."""
        match = self._regexp.fullmatch(_searchable(name))
        if match is None:
            return None

        def group(number: int) -> str:
            start, end = match.span(number)
            return name[start:end] if start >= 0 else ""

        parts = [part if isinstance(part, str) else group(part) for part in self._parts]
        return "".join(parts) + group(self._inside)


class RenamingSet:
    """Which of many renamings mean a name, found in one pass over it, however many they are."""

    def __init__(self, renamings: Sequence[Renaming]) -> None:
        self._sets = [*_sets(renamings, range(len(renamings)))]

    def matching(self, name: str) -> list[int]:
        """Return the numbers of those that mean a name, in ascending order."""
        name = _searchable(name)
        found = ((one.Match(name), numbers) for one, numbers in self._sets)
        return [numbers[n] for matches, numbers in found for n in sorted(matches or ()) if n]


def _sets(renamings: Sequence[Renaming], numbers: Sequence[int]) -> Iterator[tuple[Any, list[int]]]:
    """Yield RE2's sets and the numbers of what each holds: one set if it fits into the memory.

    The first of each set is a name that is always found, if the set works at all: what lacks
    memory while it matches says that nothing does.
    """
    import re2

    found = re2.Set.FullMatchSet(_options(_SET_MEMORY))
    found.Add(_char(0))
    for number in numbers:
        found.Add(renamings[number].written)
    try:
        found.Compile()
        works = found.Match("\0") is not None
    except re2.error:
        if len(numbers) < 2:  # it had less memory when it was made, and enough
            raise
        works = False
    if works or len(numbers) < 2:
        yield found, [-1, *numbers]
        return
    half = len(numbers) // 2
    yield from _sets(renamings, numbers[:half])
    yield from _sets(renamings, numbers[half:])


#: Returns the pattern of a text.
pattern = lru_cache(maxsize=1024)(Pattern)


@lru_cache(maxsize=1 << 16)
def _found(regexp: Any, name: str) -> bool:
    return regexp.search(_searchable(name)) is not None


def _searchable(name: str) -> str:
    """Return a name as UTF-8 can hold it, of the same length: lone surrogates become U+FFFD."""
    if name.isascii():
        return name
    return "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in name)


def _written(text: str, *, whole: bool = False) -> str:
    """Return a pattern as it is written for RE2.

    Args:
        whole: it is to match whole names, or the beginning of one that goes on behind a dot.
    """
    try:
        return _Writer(whole).top(_parsed(text))
    except RecursionError:
        raise PatternError.saying("pattern.nested") from None


def _options(memory: int, *, captures: bool = False) -> Any:
    import re2  # 3 ms, and most configurations have no pattern

    options = re2.Options()
    options.log_errors = False
    options.max_mem = memory
    options.never_capture = not captures
    return options


def _compiled(written: str, *, captures: bool = False) -> Any:
    import re2

    try:
        return re2.compile(written, _options(_MEMORY, captures=captures))
    except re2.error as error:
        said = error.args[0] if error.args else error
        why = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
        raise PatternError.saying("pattern.too_large", why=why[:200]) from None


def _parsed(text: str) -> Any:
    """Return a pattern as Python's own parser reads it."""
    if len(text) > _LONGEST:
        raise PatternError.saying("pattern.too_long", length=len(text), most=_LONGEST)
    if _depth(text) > _DEEPEST:
        raise PatternError.saying("pattern.too_deep", most=_DEEPEST)
    try:
        from re import _parser as parser  # type: ignore[attr-defined]
    except ImportError:  # Python 3.10
        import sre_parse as parser
    try:
        text.encode()
        return parser.parse(text)
    except UnicodeEncodeError:
        raise PatternError.saying("pattern.no_unicode") from None
    except re.error as error:
        raise PatternError.saying("pattern.no_expression", error=str(error)) from None
    except (RecursionError, OverflowError, MemoryError):
        raise PatternError.saying("pattern.too_deep_or_large") from None


def _depth(text: str) -> int:
    """Return how many parentheses are open at once; those of a character class count, too.

    Python's own bound on recursion is another in every process: MindSpore raises it.
    """
    level = deepest = 0
    for char in re.sub(r"\\.", "", text, flags=re.DOTALL):
        level += (char == "(") - (char == ")")
        deepest = max(deepest, level)
    return deepest


class _Writer:
    """Writes a parsed pattern for RE2."""

    def __init__(self, whole: bool) -> None:
        self._whole = whole

    def top(self, tree: Any) -> str:
        flags = tree.state.flags
        body = self._all(tree, flags)
        if flags & re.IGNORECASE:
            body = f"(?i:{body})"
        return rf"(?:{body})(\.[^\n]+)?" if self._whole else body

    def _all(self, items: Any, flags: int) -> str:
        return "".join(self._one(str(op), argument, flags) for op, argument in items)

    def _one(self, op: str, argument: Any, flags: int) -> str:
        if op in _REFUSED:
            raise PatternError.saying(f"pattern.{op.lower()}")
        if op == "LITERAL":
            return _char(argument)
        if op == "NOT_LITERAL":
            return f"[^{_char(argument)}]"
        if op == "ANY":
            return r"[\x{0}-\x{10ffff}]" if flags & re.DOTALL else r"[^\n]"
        if op == "IN":
            return self._set(argument, flags)
        if op == "BRANCH":
            return f"(?:{'|'.join(self._all(branch, flags) for branch in argument[1])})"
        if op == "SUBPATTERN":
            return self._group(argument, flags)
        if op in ("MAX_REPEAT", "MIN_REPEAT"):
            return self._repeat(argument, flags) + ("?" if op == "MIN_REPEAT" else "")
        if op == "AT":
            return self._place(str(argument), flags)
        if op == "FAILURE":
            return r"[^\x{0}-\x{10ffff}]"
        raise PatternError.saying("pattern.unknown_part", name=op.lower())

    def _group(self, argument: Any, flags: int) -> str:
        number, added, removed, items = argument
        inner = (flags | added) & ~removed
        body = self._all(items, inner)
        if (inner ^ flags) & re.IGNORECASE:
            body = f"(?{'' if inner & re.IGNORECASE else '-'}i:{body})"
        return f"(?:{body})" if number is None else f"({body})"

    def _repeat(self, argument: Any, flags: int) -> str:
        low, high, items = argument
        body = f"(?:{self._all(items, flags)})"
        if str(high) == "MAXREPEAT":
            return body + {0: "*", 1: "+"}.get(low, f"{{{low},}}")
        return body + ("?" if (low, high) == (0, 1) else f"{{{low},{high}}}")

    def _place(self, place: str, flags: int) -> str:
        if place == "AT_BEGINNING":
            return "(?m:^)" if flags & re.MULTILINE else r"\A"
        if place == "AT_END" and flags & re.MULTILINE:
            return "(?m:$)"
        if place == "AT_END":  # also before a newline that ends the name
            return r"\z" if self._whole else r"(?:\n?\z)"
        return {
            "AT_BEGINNING_STRING": r"\A",
            "AT_END_STRING": r"\z",
            "AT_BOUNDARY": r"\b",
            "AT_NON_BOUNDARY": r"\B",
        }[place]

    def _set(self, argument: Any, flags: int) -> str:
        parts, negated = [], ""
        for op, value in argument:
            if str(op) == "NEGATE":
                negated = "^"
            elif str(op) == "LITERAL":
                parts.append(_char(value))
            elif str(op) == "RANGE":
                parts.append(f"{_char(value[0])}-{_char(value[1])}")
            else:
                name = str(value).removeprefix("CATEGORY_")
                if flags & re.ASCII:
                    parts.append(_ASCII[name])
                else:
                    parts.append(_not_word() if name == "NOT_WORD" else _UNICODE[name])
        return f"[{negated}{''.join(parts)}]"


def _char(code: int) -> str:
    if 0xD800 <= code <= 0xDFFF:
        raise PatternError.saying("pattern.surrogate")
    return chr(code) if chr(code).isalnum() and code < 128 else f"\\x{{{code:x}}}"


@lru_cache(maxsize=1)
def _not_word() -> str:
    """Return everything that `\\W` matches: within brackets RE2 can negate one property alone."""
    everything = "".join(map(chr, (*range(0xD800), *range(0xE000, 0x110000))))
    spans = [match.group() for match in re.finditer(r"\W+", everything)]
    return "".join(
        f"\\x{{{ord(part[0]):x}}}-\\x{{{ord(part[-1]):x}}}"
        for span in spans
        for part in re.findall("[\\x00-\ud7ff]+|[\ue000-\U0010ffff]+", span)
    )


def _template(target: str, groups: list[str | None]) -> list[str | int]:
    """Return the parts of a new name: texts, and numbers of groups.

    Python itself expands the target, once, over a match in which every group is one character
    that the target does not have.
    """
    free = (char for char in map(chr, range(0x100000, 0x10FFFD)) if char not in target)
    markers = {next(free): number for number in range(1, len(groups) + 1)}
    dummy = "".join("(.)" if name is None else f"(?P<{name}>.)" for name in groups)
    match = re.fullmatch(dummy, "".join(markers))
    assert match is not None
    try:
        expanded = match.expand(target)
    except (re.error, IndexError) as error:
        missing = [n for n in re.findall(r"\\([0-9]+)", target) if int(n) > len(groups)]
        if missing:
            raise PatternError.saying("pattern.no_group", group=missing[0]) from None
        raise PatternError.saying("pattern.wrong_target", why=str(error)) from None
    parts: list[str | int] = [""]
    for char in expanded:
        if char in markers:
            parts += [markers[char], ""]
        else:
            parts[-1] = f"{parts[-1]}{char}"
    return [part for part in parts if part != ""]
