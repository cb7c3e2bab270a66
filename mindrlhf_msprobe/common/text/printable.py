"""The one door for texts that are shown: what comes from a file cannot steer a terminal.

Control characters (escape sequences among them), characters that turn the direction of a line or
end it, and what has no UTF-8 form are shown as escapes; a text without an end is cut.
"""

from __future__ import annotations

import re
import unicodedata

_LONGEST = 20_000  # characters of one line
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_LINE_ENDS = ("Zl", "Zp")


def shortened(text: object, most: int = 300) -> str:
    """Return a text that a file gives as a sentence quotes it.

    It is cut, and memory addresses, which are others in every process, are left out.
    """
    quoted = _ADDRESS.sub("", str(text))
    if len(quoted) <= most:
        return quoted
    return f"{quoted[:most]}… ({len(quoted)} characters)"


def printable(line: str) -> str:
    """Return a text as one line that can be shown."""
    if len(line) > _LONGEST:
        line = f"{line[:_LONGEST]}… ({len(line)} characters)"
    if line.isprintable():
        return line
    return "".join(
        char.encode("unicode_escape").decode() if _is_escaped(char) else char for char in line
    )


def printable_lines(text: str) -> str:
    """Return a text of several lines, each of which can be shown."""
    return "\n".join(map(printable, text.split("\n")))


def printable_json(text: str) -> str:
    """Return JSON, on several lines, that says the same and can be shown."""
    if text.isascii():
        return text
    return re.sub(r"[^\x20-\x7e\n]", _json_escape, text)


def _json_escape(match: re.Match[str]) -> str:
    char = match[0]
    if not _is_escaped(char):
        return char
    units = char.encode("utf-16-be", errors="surrogatepass")
    return "".join(f"\\u{units[i] << 8 | units[i + 1]:04x}" for i in range(0, len(units), 2))


def _is_escaped(char: str) -> bool:
    category = unicodedata.category(char)
    return category[0] == "C" or category in _LINE_ENDS
