"""What stands in the braces of a sentence, in both languages.

    {name}  {name:.3g}  {name!r}    the parameter, as `str.format` shows it
    {name:?yes|no}                  `yes` where it is there: neither None, empty, zero nor false
    {name:known?yes|no}             … where it is not None
    {name:one?yes|no}               … where it is 1, or holds one item; also `several`, `positive`,
                                    `negative`
    {name:same other?yes|no}        … where it is equal to the parameter `other`
    {name:many more?yes|no}         … where it and what the parameter `more` counts are several
    {name:=a->text|b->text|->rest}  the text of its value
    {name:#record}                  `1 record`, `2 records`
    {name:&, }                      its items, joined
    {name:*{0}: {1}|, }             each of its items by a template, joined
    {:, |text|text}                 the texts that say something, joined
    {name:word argument}            as a function of the language's `words` shows it

Texts in braces are templates themselves. A name that is no parameter is a choice, of `choices`, or
a piece: a template, of the area or for all.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

#: Names the piece that the parameters choose; None: nothing is said.
Choice = Callable[..., str | None]
#: Shows a parameter, given the argument behind the word and all parameters.
Shape = Callable[[Any, str, Mapping[str, Any]], str]

_CONDITION = re.compile(r"(known|one|several|positive|negative|same|many|)(?: (\w+))?\?")
_MARKS = re.compile(r"!r|\{[0-9:]|\{[^{}]*:(?:[^{}]*\?|[=#&*]|[a-z_]{2,})")


_parse = cache(lambda template: [*string.Formatter().parse(template)])


class Parameters(dict[str, Any]):
    """The parameters of a sentence, by name: those given, then attributes of what it is said of."""

    def __init__(self, given: Mapping[str, Any], of: Sequence[object] = ()) -> None:
        super().__init__(given)
        self._of = of

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or any(hasattr(one, str(name)) for one in self._of)

    def __missing__(self, name: str) -> Any:
        for one in self._of:
            if hasattr(one, name):
                return getattr(one, name)
        raise KeyError(name)

    def also(self, others: Mapping[str, Any]) -> Parameters:
        """Return them with others, which come before those of the same name."""
        return Parameters({**self, **others}, self._of)


@cache
def alternatives(text: str) -> list[str]:
    """Return the parts of a text between `|`, but for those inside braces."""
    parts, depth = [""], 0
    for char in text:
        depth += (char == "{") - (char == "}")
        if char == "|" and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return parts


class Speaker(string.Formatter):
    """Makes the texts of one area in one language.

    Args:
        pieces: templates that are part of others, by name.
        choices: by the place of a template, what names its piece.
        shapes: the language's words for parameters.
    """

    def __init__(
        self, pieces: Mapping[str, str], choices: Mapping[str, Choice], shapes: Mapping[str, Shape]
    ) -> None:
        self._pieces, self._choices, self._shapes = pieces, choices, shapes
        self._plain: dict[str, bool] = {}

    def text(self, template: str, params: Parameters) -> str:
        """Return what a template says of parameters.

        Raises:
            KeyError: it names what is neither a parameter nor a piece.
        """
        if template not in self._plain:
            names = {name for _, name, _, _ in _parse(template) if name is not None}
            others = self._pieces.keys() | self._choices.keys()
            self._plain[template] = not (_MARKS.search(template) or names & others)
        if self._plain[template]:  # str.format is much faster
            return template.format_map(params)
        said = []
        for literal, name, spec, conversion in _parse(template):
            said.append(literal)
            if name is not None:
                said.append(self._place(name, spec or "", conversion, params))
        return "".join(said)

    def _place(self, name: str, spec: str, conversion: str | None, params: Parameters) -> str:
        if not name:
            between, *parts = alternatives(spec)
            return between.join(filter(None, (self.text(part, params) for part in parts)))
        if condition := _CONDITION.match(spec):
            yes, no, *_ = [*alternatives(spec[condition.end() :]), ""]
            value = self._value(name, params, optional=True)
            other = self._value(condition[2], params, optional=True) if condition[2] else None
            return self.text(yes if _holds(condition[1], value, other) else no, params)
        value = self._value(name, params)
        mark, rest = spec[:1], spec[1:]
        if mark == "=":
            texts = dict(one.split("->", 1) for one in alternatives(rest))
            return self.text(texts.get(str(value), texts.get("", "")), params)
        if mark == "#":
            number = len(value) if isinstance(value, (list, tuple)) else value
            return f"{number} {rest}" if number == 1 else f"{number} {rest}s"
        if mark == "&":
            return rest.join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
        if mark == "*":
            each, between = alternatives(rest)
            items = (one if isinstance(one, (list, tuple)) else (one,) for one in value)
            numbered = ({str(n): part for n, part in enumerate(one)} for one in items)
            return between.join(self.text(each, params.also(item)) for item in numbered)
        word, _, argument = spec.partition(" ")
        if word == "piece":
            piece = self._pieces.get(f"{argument}{value}")
            return str(value) if piece is None else self.text(piece, params)
        if word in self._shapes:
            return self._shapes[word](value, argument, params)
        return str(self.format_field(self.convert_field(value, conversion), spec))

    def _value(self, name: str, params: Parameters, *, optional: bool = False) -> Any:
        """Return a parameter, or what a choice or a piece says."""
        if name in params:
            return params[name]
        first = re.split(r"[.\[]", name, maxsplit=1)[0]
        if first in params:
            try:
                return self.get_field(name, (), params)[0]
            except KeyError:
                if optional:  # a part that is not there
                    return None
                raise
        piece = self._choices[first](**params) if first in self._choices else first
        if piece is None or (optional and piece not in self._pieces):
            return None if optional else ""
        return self.text(self._pieces[piece], params)

    def get_value(self, key: int | str, args: Any, params: Mapping[str, Any]) -> Any:
        """Return a parameter; a part of an item is called by its number."""
        return params[str(key)]

    def convert_field(self, value: Any, conversion: Any) -> Any:
        """Return a text in quotes as it is: of a pattern, repr() would double each backslash."""
        shown = super().convert_field(value, conversion)
        if conversion == "r" and isinstance(value, str):
            return shown.replace("\\\\", "\\")
        return shown


def _holds(condition: str, value: Any, other: Any) -> bool:
    if condition == "known":
        return value is not None
    if condition == "same":
        sides = [[*of] if isinstance(of, (list, tuple)) else of for of in (value, other)]
        return bool(sides[0] == sides[1])
    if not condition:
        return bool(value)
    number = len(value) if isinstance(value, (str, list, tuple)) else (value or 0)
    if condition == "many":
        return bool(number + other > 1)
    if condition == "one":
        return bool(number == 1)
    return bool(number < 0 if condition == "negative" else number > (condition == "several"))
