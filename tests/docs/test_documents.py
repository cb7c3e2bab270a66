"""The documentation is true: its blocks run, its outputs were printed, both languages agree."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from documents import ENGLISH, ROOT, Block, blocks, chinese, inline_code, links, prose, unlike
from given import Given
from helpers.command_line import CommandLine

from mindrlhf_msprobe import load_config
from mindrlhf_msprobe.cli import _COMMANDS, _parser
from mindrlhf_msprobe.phases import phase_table
from mindrlhf_msprobe.probe import recording_probes

#: The README's two commands that install the package: .ci/run runs them as they are written.
RUN_BY_CI = ("mindrlhf-msprobe demo --output demo_out", "python -m pytest -n 2 --dist loadfile")
_USES = ("bash", "python")  # blocks that use files


@pytest.fixture(scope="module")
def command_line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """Return the command line in one process, with the log that a reader sees."""
    with contextlib.closing(CommandLine(tmp_path_factory.mktemp("said"), log_level=None)) as line:
        yield line


PAGES = [pytest.param(page, id=page.name) for page in ENGLISH]


class Reader:
    """Somebody who reads a page from top to bottom and does what it says, in one directory."""

    def __init__(
        self, page: Path, directory: Path, given: Given, command_line: CommandLine
    ) -> None:
        self.page = page
        self.directory = directory
        self.given = given
        self.command_line = command_line
        self.blocks = blocks(page)
        self.mirror = {mine.place: other for mine, other in zip(self.blocks, blocks(chinese(page)))}
        self.again: list[list[str]] | None = None  # prints the same in Chinese
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.printed = ""

    def read(self) -> None:
        for number, block in enumerate(self.blocks):
            if self.page.name == "README.md" and _is_run_by_ci(block):
                continue
            for name in block.given:
                self.names |= self.given.make(name, self.directory)
            if block.file is not None:
                (self.directory / block.file).write_text(block.text, encoding="utf-8")
                later = (b for b in self.blocks[number:] if b.language in _USES)
                used = any(block.file in b.text for b in later if b is not block)
                assert used, f"{block.place}: no command on the page uses {block.file}"
            do = getattr(self, f"_{block.language}", None)
            assert do is not None, f"{block.place}: what is a block of {block.language}?"
            do(block)
            self.again = in_chinese(block)

    def _bash(self, block: Block) -> None:
        programs = Path(sys.executable).parent
        assert (programs / "mindrlhf-msprobe").exists(), "the package is not installed here"
        if (commands := commands_of(block.text)) is not None:
            self._commands(block, commands)
            return
        done = subprocess.run(
            ["bash", "-eu", "-c", block.text],
            cwd=self.directory,
            env={
                **os.environ,
                "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
                "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            timeout=300,
        )
        self.printed = done.stdout
        assert done.returncode == block.exit_code, f"{block.place}\n{block.text}\n{done.stdout}"

    def _commands(self, block: Block, commands: list[list[str]]) -> None:
        """Do what `bash -eu` does; one process that has imported MindSpore runs all commands."""
        self.printed, code = "", 0
        for arguments in commands:
            if code == 0:
                done = self.command_line.run(self.directory, *arguments, together=True)
                self.printed, code = self.printed + done.stdout, done.returncode
        assert code == block.exit_code, f"{block.place}\n{block.text}\n{self.printed}"

    def _python(self, block: Block) -> None:
        if block.file is not None:
            return
        with contextlib.redirect_stdout(io.StringIO()) as stdout:
            exec(compile(block.text, block.place, "exec"), self.names)
        self.printed = stdout.getvalue()

    def _yaml(self, block: Block) -> None:
        if "msprobe_config" in yaml.safe_load(block.text):
            path = self.directory / (block.file or "section.yaml")
            path.write_text(block.text, encoding="utf-8")
            load_config(path)
        else:
            assert block.file is not None, f"{block.place}: what reads it? Name it as a file"

    def _json(self, block: Block) -> None:
        assert block.file is not None, f"{block.place}: what reads it? Name it as a file"

    def _text(self, block: Block) -> None:
        if block.is_output:
            self._compare(block, self.printed)
            if self.again is not None:
                done = [self._again(*arguments) for arguments in self.again]
                self._compare(self.mirror[block.place], "".join(done))

    def _compare(self, block: Block, printed: str) -> None:
        wrong = unlike(block.text, printed)
        assert wrong is None, f"{block.place}: was not printed: {wrong}\n{printed}"

    def _again(self, *arguments: str) -> str:
        """Return what a command says in Chinese; what it writes stays English."""
        done = self.command_line.run(self.directory, *arguments, "--lang", "zh", together=True)
        if "-o" in arguments:
            self.command_line.run(self.directory, *arguments)
        return done.stdout


#: Commands that say the same again, in no time.
_REPEATED = ("compare", "check", "mismatch", "show", "trend", "estimate", "accuracy", "replay")


def in_chinese(block: Block) -> list[list[str]] | None:
    """Return what prints the output of a block once more, None of what is not done twice.

    A demo's runs are compared again; it does not train again.
    """
    found = []
    for name, *given in (commands_of(block.text) or [[""]]) if block.language == "bash" else [[""]]:
        if name == "demo":
            output = given[given.index("--output") + 1]
            runs = (f"{output}/run_a", f"{output}/run_b")
            found.append(["compare", *runs, "-o", f"{output}/comparison"])
        elif name in _REPEATED:
            found.append([name, *given])
        else:
            return None
    return found


def commands_of(text: str) -> list[list[str]] | None:
    """Return the arguments of each line's `mindrlhf-msprobe`; None where it takes a shell."""
    if {*text} & {*"$`*?~"} or "\\\n" in text:
        return None
    commands = []
    for line in text.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        program, *arguments = [*lexer] or [""]
        operators = [word for word in arguments if not word.strip(lexer.punctuation_chars)]
        if program != "mindrlhf-msprobe" or operators:
            return None
        commands.append(arguments)
    return commands


def _is_run_by_ci(block: Block) -> bool:
    return block.language == "bash" and block.text.rstrip().endswith(RUN_BY_CI)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_block_does_what_the_page_says(page, tmp_path, monkeypatch, demo, command_line):
    """Commands and Python run in order in one directory, with the exit codes and outputs shown."""
    monkeypatch.chdir(tmp_path)
    output, _ = demo
    with Given(output) as given:
        Reader(page, tmp_path, given, command_line).read()
        for probe in recording_probes():  # as at the end of a script
            probe.close()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "mindrlhf-msprobe show RUN\nmindrlhf-msprobe --version\n",
            [["show", "RUN"], ["--version"]],
        ),
        (
            r"mindrlhf-msprobe compare A B --include 'a\.1 (x|y)'",
            [[*["compare", "A", "B", "--include"], r"a\.1 (x|y)"]],
        ),
        ("mindrlhf-msprobe show RUN  # where it lies", [["show", "RUN"]]),
        ("mindrlhf-msprobe show RUN | tail -1", None),
        ("mindrlhf-msprobe show RUN > out", None),
        ("mindrlhf-msprobe show RUN; ls", None),
        ("mindrlhf-msprobe show $RUN", None),
        ("mindrlhf-msprobe show *", None),
        ("mindrlhf-msprobe show \\\n  RUN", None),
        ("python trainer.py", None),
        ("MSPROBE_LOG_LEVEL=3 mindrlhf-msprobe show RUN", None),
        ("", []),
    ],
)
def test_only_plain_commands_run_without_a_shell(text, expected):
    """Whatever a shell has to do, a shell does."""
    assert commands_of(text) == expected


def test_the_patch_for_mindrlhf_is_whole():
    """Its hunks are as long as they say, and it opens the phases of the integration page.

    test_mindrlhf_grpo_real.py trains with it, where there is a checkout of MindRLHF.
    """
    patch = ROOT / "docs" / "mindrlhf_grpo.patch"
    done = subprocess.run(
        ["git", "apply", "--numstat", str(patch)], capture_output=True, text=True, check=True
    )
    page = (ROOT / "docs" / "en" / "integration.md").read_text(encoding="utf-8")
    files = [line.split("\t") for line in done.stdout.splitlines()]
    assert all(f"| `{name}` |" in page for _, _, name in files)
    sums = [sum(int(line[i]) for line in files) for i in (0, 1)]
    assert f"It adds {sums[0]} lines, and removes {sums[1]}" in page
    phases = re.findall(r'probe\.phase\("(\w+)"', patch.read_text(encoding="utf-8"))
    assert set(phases) <= set(phase_table({}))
    assert len(phases) == 4


def test_ci_runs_what_is_skipped_here():
    """The two commands that install the package stand in the README, and .ci/run runs them."""
    skipped = [block.text for block in blocks(ROOT / "README.md") if _is_run_by_ci(block)]
    assert len(skipped) == len(RUN_BY_CI)
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for words in re.findall(r"command_with '(.*?)'\)", ci):
        assert any(words in text for text in skipped), words


@pytest.mark.parametrize("page", PAGES)
def test_the_chinese_page_has_the_same_blocks(page):
    """Block by block the same command, program, file or output; only comments are translated.

    Of what commands print the test above knows the Chinese.
    """
    english, other = blocks(page), blocks(chinese(page))
    assert [(b.language, b.is_output) for b in english] == [
        (b.language, b.is_output) for b in other
    ]
    for before, mine, theirs in zip([None, *english], english, other):
        if mine.is_output and before is not None and in_chinese(before) is not None:
            continue
        assert mine.without_comments() == theirs.without_comments(), theirs.place


@pytest.mark.parametrize(
    "page", [*PAGES, *(pytest.param(chinese(p), id=f"zh/{p.name}") for p in ENGLISH)]
)
def test_links_lead_somewhere(page):
    """Every link to a file of the repository names one that is there, in the page's language."""
    for target in links(page):
        file, _, heading = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        assert path.is_file(), target
        if heading:
            assert heading in {_anchor(line) for line in prose(path).splitlines()}
        if path.parent.name in ("en", "zh") and page.parent != path.parent:
            assert (path.parent.name == "zh") == (page.name == "README_CN.md"), target


def _anchor(line: str) -> str | None:
    if not re.match(r"#+ ", line):
        return None
    return re.sub(r"[^\w\- ]", "", line.lstrip("#").strip().lower()).replace(" ", "-")


def options_of(parser):
    """Return the options of a command, and of the commands that it has."""
    groups = parser._subparsers._group_actions if parser._subparsers else []
    own = [one for group in groups for one in group.choices.values()]
    return set(parser._option_string_actions).union(*map(options_of, own))


@pytest.mark.parametrize(
    "page", [*PAGES, *(pytest.param(chinese(p), id=f"zh/{p.name}") for p in ENGLISH)]
)
def test_commands_named_in_sentences_exist(page):
    """Commands and options in the running text are those of the command line."""
    parsers = _parser(_COMMANDS)._subparsers._group_actions[0].choices
    options = {name: options_of(parser) for name, parser in parsers.items()}
    for code in inline_code(page):
        words = code.removeprefix("mindrlhf-msprobe ").split()
        if code.startswith("mindrlhf-msprobe ") and not words[0].startswith("-"):
            assert words[0] in options, code
            if words[0] == "run":  # what stands behind the script is the script's
                words = words[:2]
        known = options.get(words[0]) if words else None
        if known is None and code.startswith("--"):
            known = set().union(*options.values())
        if known is not None:
            used = {word.strip("[]|,") for word in words if word.lstrip("[").startswith("--")}
            assert used <= known | {"--help", "--version", "--"}, code
        if code.startswith("python benchmarks/"):
            script = ROOT / code.split()[1]
            source = script.read_text(encoding="utf-8")
            assert all(word in source for word in code.split() if word.startswith("--")), code
