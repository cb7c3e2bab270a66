"""The pages of the documentation as data: blocks, the remarks before them, links, inline code.

Remarks are HTML comments in the lines above a block, which readers do not see:

    <!-- given: demo_out -->      what the reader has by now (given.py prepares it)
    <!-- exit: 1 -->              the exit code of the block's last command, 0 without it
    <!-- file: NAME -->           the block is a file of that name
    <!-- output -->               of a text block: it is what the block before it printed

What docs/generate.py writes stands between `<!-- generated: NAME -->` and `<!-- end -->`.

A block whose first line is `# NAME.py`, `# NAME.yaml` or the like is a file of that name.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
ENGLISH = [ROOT / "README.md", *sorted((ROOT / "docs" / "en").glob("*.md"))]

_FENCE = re.compile(r" *```(\w+)$")
_REMARK = re.compile(r"<!-- (\w+)(?:: (.*?))? -->$")
_FILE = re.compile(r"# ([\w.-]+\.\w+)$")
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def chinese(page: Path) -> Path:
    """Return the Chinese mirror of an English page."""
    return ROOT / ("README_CN.md" if page.name == "README.md" else f"docs/zh/{page.name}")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    place: str
    language: str
    text: str
    given: tuple[str, ...]
    exit_code: int
    is_output: bool
    file: str | None

    def without_comments(self) -> object:
        """Return what must be the same in every language."""
        if self.language == "yaml":
            return yaml.safe_load(self.text)
        if self.language == "text":
            return self.text if self.is_output else None
        lines = [re.sub(r"(^|\s+)# .*$", "", line).rstrip() for line in self.text.splitlines()]
        return self.file, [line for line in lines if line]


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page, in order."""
    found: list[Block] = []
    remarks: dict[str, str] = {}
    lines = iter(enumerate(page.read_text(encoding="utf-8").splitlines(), 1))
    for number, line in lines:
        place = f"{page.relative_to(ROOT)}:{number}"
        remark, fence = _REMARK.match(line.strip()), _FENCE.match(line)
        if remark and remark[1] in ("generated", "end"):
            continue
        if remark:
            assert remark[1] in ("given", "exit", "file", "output"), (
                f"{place}: unknown remark {line}"
            )
            remarks[remark[1]] = remark[2] or ""
        elif fence:
            inside = []
            for _, content in lines:
                if content.strip() == "```":
                    break
                inside.append(content)
            name = _FILE.match(inside[0].strip()) if inside else None
            found.append(
                Block(
                    place=place,
                    language=fence[1],
                    text=textwrap.dedent("\n".join(inside)) + "\n",
                    given=tuple(filter(None, re.split(r", *", remarks.pop("given", "")))),
                    exit_code=int(remarks.pop("exit", 0)),
                    is_output="output" in remarks,
                    file=remarks.get("file") or (name[1] if name else None),
                )
            )
            remarks.clear()
        elif line.strip():
            assert "```" not in line, f"{place}: a fence without a language"
            assert not remarks, f"{place}: a remark with no block behind it"
    return found


def prose(page: Path) -> str:
    """Return a page without its blocks."""
    text = page.read_text(encoding="utf-8")
    return re.sub(r"^ *```\w+\n.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)


def inline_code(page: Path) -> list[str]:
    """Return the code that stands within the sentences and tables of a page."""
    return [code.replace("\\|", "|") for code in _INLINE.findall(prose(page))]


def links(page: Path) -> list[str]:
    """Return the targets of a page's links to files of this repository."""
    return [t for t in _LINK.findall(prose(page)) if not re.match(r"\w+:", t)]


def unlike(shown: str, printed: str) -> str | None:
    """Return the first line of `shown` that was not printed, None if all were, in this order.

    A line `…` stands for any lines, a `…` that ends a line for the rest of it. Times, sizes,
    paths, fingerprints and what depends on the processor (numbers with a fraction, how far a
    difference spread) may differ.
    """
    left, gap = [_steady(line) for line in printed.splitlines()], False
    for line in shown.splitlines():
        if line.strip() == "…":
            gap = True
            continue
        wanted, cut = _steady(line.removesuffix("…")), line.endswith("…")
        same = str.startswith if cut else str.__eq__
        at = next((i for i, other in enumerate(left) if same(other, wanted)), None)
        if at is None or (at and not gap):
            return line
        left, gap = left[at + 1 :], False
    return None if gap or not left else f"(the end of the block, before: {left[0]})"


def _steady(line: str) -> str:
    line = re.sub(r"^(After it, in [^:(]*|差异传播（[^）]*）).*", r"\1", line)
    line = re.sub(r"( records in|条记录，用时) [0-9.]+ s[:：].*", r"\1", line)
    line = re.sub(r"\b\d+ (of them|agree only)\b", r"N \1", line)
    line = re.sub(r"(其中|仅) ?\d+ 条", r"\1 N 条", line)
    line = re.sub(r"\b\d+( unequal\b| 个不相等)", r"N\1", line)
    line = re.sub(r"(?<![^\s：，（])/[^\s：，]*/", "/…/", line)
    line = re.sub(r"\b(xxh3_128:)?[0-9a-f]{32}\b", "HASH", line)
    line = re.sub(r"\d{4}-\d\d-\d\dT[0-9:+.Z]+", "TIME", line)
    line = re.sub(r"[0-9.]+ ([KMGT]i)?B\b", "SIZE", line)
    line = re.sub(r"-?\d+\.\d*(e[+-]?\d+)?|-?\d+e[+-]?\d+", "NUMBER", line)
    return re.sub(r"\s+", " ", line).strip()
