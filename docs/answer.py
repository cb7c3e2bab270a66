"""Draw what `mindrlhf-msprobe compare` prints: docs/answer.svg and answer_zh.svg of the READMEs.

    mindrlhf-msprobe demo --output demo_out
    python docs/answer.py demo_out/run_a demo_out/run_b --lang en docs/answer.svg
    python docs/answer.py demo_out/run_a demo_out/run_b --lang zh docs/answer_zh.svg

`make picture` does all three.

The text stands in the picture a second time, as its description: for readers that show no
pictures, and for tests/docs/test_answer.py, which compares it with what the demo prints.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import unicodedata
from html import escape
from pathlib import Path
from xml.etree import ElementTree

COMMAND = "mindrlhf-msprobe compare demo_out/run_a demo_out/run_b -o out"
COLUMNS = 104
LINE, SIZE, WIDTH = 19, 13, 7.83  # pixels: a line, the font, a character
_STYLE = (
    f"text{{font:{SIZE}px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
    "fill:#d6dbe3;white-space:pre}.prompt{fill:#8b949e}.outcome{fill:#ff7b72;font-weight:bold}"
    ".same{fill:#7ee787;font-weight:bold}.place{fill:#ffffff;font-weight:bold}"
    ".label{fill:#79c0ff}"
)
_SVG = "{http://www.w3.org/2000/svg}"
_LABEL = re.compile(
    r"[A-Z]\w[^:.·]{2,40}: |  \w[\w ]{2,16}(?:: |：)|[一-鿿]{2,8}(?:（[\w ]+）){0,2}："
)


def answer(run_a: str, run_b: str, *options: str) -> str:
    """Return what `compare RUN_A RUN_B` prints, without the time that it took.

    Args:
        run_a: the baseline's directory.
        run_b: the directory of the run under test.
        options: further options of the command.

    Raises:
        subprocess.CalledProcessError: it could not compare (exit code 2).
    """
    with tempfile.TemporaryDirectory() as parent:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "mindrlhf_msprobe", "compare"),
                *(run_a, run_b, "-o", f"{parent}/out", *options),
            ],
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
    if done.returncode > 1:
        raise subprocess.CalledProcessError(done.returncode, done.args)
    printed = done.stdout.replace(f"{parent}/out", "out")
    for run, name in zip((run_a, run_b), COMMAND.split()[2:]):
        printed = printed.replace(run, name)
    return as_shown(printed)


def as_shown(printed: str) -> str:
    """Return a printed answer as the picture shows it: other people's directories are cut."""
    return re.sub(r"(?<=File )/\S*/", "/…/", printed).strip() + "\n"


def draw(text: str, lang: str = "en") -> str:
    """Return the SVG of a text as a terminal shows it, wrapped at 104 columns.

    Args:
        text: what was printed.
        lang: the language that was asked for.
    """
    command = COMMAND if lang == "en" else f"{COMMAND} --lang {lang}"
    rows = [("prompt", f"$ {command}")]
    for line in text.splitlines():
        rows += _rows(line)
    height = LINE * (len(rows) + 1) + 8
    width = round(WIDTH * COLUMNS) + 40
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">',
        f"<title>{escape(command)}</title>",
        f"<desc>{escape(text, quote=False)}</desc>",
        f"<style>{_STYLE}</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#161b22"/>',
    ]
    for number, (kind, row) in enumerate(rows, 1):
        label = _LABEL.match(row) if kind == "line" else None
        inside = escape(row, quote=False)
        if label:
            inside = f'<tspan class="label">{inside[: label.end()]}</tspan>{inside[label.end() :]}'
        drawn.append(
            f'<text class="{kind}" x="20" y="{LINE * number + 6}" xml:space="preserve">'
            f"{inside}</text>"
        )
    return "\n".join([*drawn, "</svg>", ""])


def text_of(picture: str) -> str:
    """Return the text that a picture shows."""
    return ElementTree.fromstring(picture).findtext(f"{_SVG}desc") or ""


def _rows(line: str) -> list[tuple[str, str]]:
    """Return one printed line as rows of the terminal, each with its kind."""
    kind = "line"
    if re.match(r"DIVERGED|INCOMPARABLE|存在差异|无法比对", line):
        kind = "outcome"
    elif re.match(r"IDENTICAL|WITHIN|一致|容差内一致", line):
        kind = "same"
    elif re.match(r"  Cell\.\S+$", line):
        kind = "place"
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    rows, row = [], ""
    for word in re.findall(r"\s*(?:[^\W\d_a-zA-Z]|[^\s一-鿿]+)", line):
        if row.strip() and _columns(row + word) > COLUMNS:
            rows.append((kind if not rows else f"{kind} more", row))
            row = indent + word.lstrip()
        else:
            row += word
    return [*rows, (kind if not rows else f"{kind} more", row)]


def _columns(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text)


if __name__ == "__main__":
    run_a, run_b, option, lang, target = sys.argv[1:]
    Path(target).write_text(draw(answer(run_a, run_b, option, lang), lang), encoding="utf-8")
