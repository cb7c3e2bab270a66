"""Words that stand nowhere in the package's names, comments and docstrings.

Texts in code are not read: codes of messages and keys of files stay as they were written once.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[2] / "mindrlhf_msprobe"

#: Word → what says it better.
WORDS = {
    "of what is none": "without",
    "of none": "without",
    "asked": "called, requested, configured",
    "asking": "calling, requesting",
    "elsewhere": "the place itself",
    "alike": "equal, of one name, of one shape: what is equal",
    "story": "what it is: findings in order of time",
    "born": "origin",
    "birth": "origin",
    "births": "origins",
    "unfit": "not usable, not comparable",
    "way": "of a class: what it does",
    "otherwise": "else, if not; differently",
}
#: In sentences `way` is a good word; a class is not called so.
_SENTENCE = re.compile(
    "|".join(rf"\b{word}\b".replace(" ", r"\s+") for word in WORDS if word != "way"), re.IGNORECASE
)
_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


class Place(NamedTuple):
    """Where a word stands.

    Attributes:
        file: below the package.
        text: the name, or the line of the comment or docstring.
    """

    file: str
    line: int
    word: str
    text: str

    @property
    def room(self) -> str:
        """The folder, two levels deep at most; of a file beside the rooms, the file."""
        parts = self.file.split("/")
        return "/".join(parts[:-1][:2]) or parts[0]


def places(package: Path = PACKAGE) -> Iterator[Place]:
    """Yield where the words stand, file by file."""
    for path in sorted(package.rglob("*.py")):
        text, file = path.read_text(encoding="utf-8"), str(path.relative_to(package))
        found = {*_of_names_and_comments(text), *_of_docstrings(text)}
        yield from (Place(file, *one) for one in sorted(found))


def _of_names_and_comments(text: str) -> Iterator[tuple[int, str, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield from _of_sentence(token.start[0], token.string)
        elif token.type == tokenize.NAME:
            for part in _PARTS.findall(token.string):
                is_class = token.string.lstrip("_")[:1].isupper() and not token.string.isupper()
                if part.lower() in WORDS and (part.lower() != "way" or is_class):
                    yield token.start[0], part.lower(), token.string


def _of_docstrings(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the words in texts that stand alone: docstrings, also those behind an assignment."""
    for node in ast.walk(ast.parse(text)):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield from _of_sentence(value.lineno, value.value)


def _of_sentence(line: int, text: str) -> Iterator[tuple[int, str, str]]:
    lines = text.splitlines()
    for match in _SENTENCE.finditer(text):
        below = text.count("\n", 0, match.start())
        yield line + below, " ".join(match[0].lower().split()), lines[below].strip()
