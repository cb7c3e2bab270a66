"""An answer as Markdown, for an issue or a chat: nothing in a name is markup, a link or a call."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from xxhash import xxh3_64_hexdigest

from mindrlhf_msprobe.common.printable import printable
from mindrlhf_msprobe.report.answer import Code, Lines, Rows

#: The last line: the hash of what stands before it.
_MARK = re.compile(rb"<!-- mindrlhf_msprobe ([0-9a-f]{16}) -->\n\Z")
_MARK_BYTES = len("<!-- mindrlhf_msprobe 0123456789abcdef -->\n")
_MOST_BYTES = 1 << 28  # that are read of a file that is there
#: What may begin markup anywhere; an underscore does where no word goes on beside it.
_MARKUP = re.compile(r"[\\`*\[\]<>|~&$]|(?<![^\W_])_|_(?![^\W_])")
#: What begins a heading, a list or a rule.
_BEGINS = re.compile(r"^(?=[-+=#])|^(\d+)(?=[.)](?:\s|$))")
_CALLS = re.compile(r"@(?=\w)")  # whom it names would get a mail


def as_markdown(lines: Lines) -> str:
    """Return an answer as a Markdown document: its headline, a list, tables and code."""
    head: list[str] = []
    if lines and isinstance(first := lines[0], str):
        head, lines = [f"**{_escaped(first)}**", ""], lines[1:]
    text = "\n".join([*head, *_listed(lines, ""), "", ""])
    return f"{text}<!-- mindrlhf_msprobe {xxh3_64_hexdigest(text.encode())} -->\n"


def is_markdown(path: Path) -> bool:
    """Return whether a file is an answer that was written so and not changed since."""
    content = path.read_bytes() if path.stat().st_size <= _MOST_BYTES else b""
    mark = _MARK.search(content)
    return mark is not None and mark[1].decode() == xxh3_64_hexdigest(content[:-_MARK_BYTES])


def _listed(lines: Lines, indent: str) -> Iterator[str]:
    """Yield lines as a list, what stands under one as a list in it."""
    block: list[str] = []  # of code
    for line, following in zip_longest(lines, lines[1:]):
        if isinstance(line, Code):
            if line.words.strip():
                yield f"{indent}- {_escaped(line.words)}"
            block.append(printable(line))
            if not isinstance(following, Code) or following.words.strip():
                longest = max(map(len, re.findall("`+", "\n".join(block))), default=0)
                fence = "`" * max(3, longest + 1)
                yield from ((indent + text).rstrip() for text in ("", fence, *block, fence, ""))
                block = []
        elif isinstance(line, str):
            yield f"{indent}- {_escaped(line)}" if line else ""
        elif isinstance(line, Rows):
            table = [map(_escaped, row) for row in (line.header, *line.rows)]
            table.insert(1, map(str, ["---"] * len(line.header)))
            yield from ("", *(f"{indent}| {' | '.join(row)} |" for row in table), "")
        else:
            yield from _listed(line, indent + "  ")


def _escaped(text: str) -> str:
    shown = _MARKUP.sub(r"\\\g<0>", printable(text).strip())
    shown = _CALLS.sub("@<!-- -->", shown)
    return _BEGINS.sub(r"\1\\", shown)
