"""One door for every output: never in a run, never over what is not ours, whole or not at all."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
from pathlib import Path

import openpyxl
import pytest
from helpers.side_files import OPINION, ROW, small_run, write_lines

from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.report import staging

AS_ROOT = os.geteuid() == 0
#: A command, with OUT for where it writes → what it writes there; "" is OUT itself.
WRITES = {
    "check A -o OUT": (
        *("checks.xlsx", "free_benchmark.csv", "free_benchmark.xlsx", "free_benchmark.json"),
    ),
    "check A -o OUT.xlsx": ("",),
    "check A --html OUT.html": ("",),
    "check A --markdown OUT.md": ("",),
    "accuracy A -o OUT": ("accuracy_check.xlsx", "verdict.json"),
    "mismatch A --phases actor_generate_sequences,actor_update -o OUT": (
        *("mismatch.xlsx", "mismatch.json"),
    ),
    "mismatch A --phases actor_generate_sequences,actor_update --html OUT.html": ("",),
    "trend A --key loss --csv OUT.csv": ("",),
    "trend A B --key loss --csv OUT": ("",),
    "report A -o OUT.html": ("",),
    "compare A B -o OUT --csv": ("summary.xlsx", "verdict.json", "summary_verdict.csv"),
    "compare A B --html OUT.html -o OUT": ("",),
    "compare A B --mapping suggest -o OUT": ("mapping.yaml",),
    "preflight collect -o OUT.json --overwrite": ("",),
    "preflight compare C.json D.json -o OUT": ("preflight.xlsx", "preflight.json"),
    "preflight compare C.json D.json --markdown OUT.md": ("",),
}
EACH = [(command, name) for command, names in WRITES.items() for name in names]
DIRECTORIES = [one for one in WRITES if one.endswith("-o OUT") and "html" not in one]
OFTEN = [one for one in WRITES if "suggest" not in one]  # it never replaces what it wrote
FOREIGN = (
    *(b"the only copy\n", b"", b"step,loss\r\n0,1.5\r\n"),
    *(b'{"schema": 1, "run": "mine", "status": "done"}', b'[{"rank": 0}]'),
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a directory with two runs, A and B, and two files of `collect`."""
    root = tmp_path_factory.mktemp("made")
    small_run(root / "A")
    small_run(root / "B", nan=False)
    write_lines(root / "A", "opinions.rank0.jsonl", OPINION)
    write_lines(root / "A", "free_benchmark.rank0.jsonl", ROW)
    for name in "CD":
        assert main(["preflight", "collect", "-o", str(root / f"{name}.json")]) == 0
    return root


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    """Stand in a copy of that directory."""
    shutil.copytree(made, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def given(command, out):
    return [word.replace("OUT", str(out)) for word in command.split()]


def target(command, out, name):
    """Return the path of one file that a command writes."""
    word = next(word for word in command.split() if word.startswith("OUT"))
    path = Path(word.replace("OUT", str(out)))
    return path / name if name else path


def content(root):
    """Return every file below a directory with its bytes, links as what they lead to."""
    found = {}
    for path in sorted(Path(root).rglob("*")):
        if path.is_symlink():
            found[str(path)] = os.readlink(path)
        elif path.is_file():
            found[str(path)] = path.read_bytes()
    return found


@pytest.mark.parametrize(("command", "name"), EACH)
def test_what_this_tool_did_not_write_stays(here, command, name, cli):
    """It is named, the answer is 2, and nothing is left half written."""
    path = target(command, "out", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    for foreign in FOREIGN:
        path.write_bytes(foreign)
        before = content(here)
        said = cli(*given(command, "out"), code=2).err
        assert path.name in said
        assert ".part" not in said
        assert content(here) == before


@pytest.mark.parametrize(("command", "name"), EACH)
def test_what_is_no_file_stays(here, command, name, cli):
    """A link is not followed, nobody waits for a pipe, and a directory is none of ours."""
    path = target(command, "out", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    kinds = ("link", "link to nothing", "pipe", "directory")
    for kind in kinds[:3] if command == "check A -o OUT.xlsx" else kinds:
        Path("mine").write_text("mine") if kind == "link" else Path("mine").unlink(missing_ok=True)
        if kind.startswith("link"):
            path.symlink_to(here / "mine")
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            path.mkdir()
        before = content(here)
        assert path.name in cli(*given(command, "out"), code=2).err
        assert content(here) == before
        path.rmdir() if kind == "directory" else path.unlink()


@pytest.mark.parametrize("command", WRITES)
def test_nothing_is_written_inside_a_run(here, command, cli):
    """Whichever run, whether it is asked about or not; its manifest is never replaced."""
    Path("link").symlink_to(here / "B")
    before = content(here)
    for place in ("A/x", "B/actor_update/step0/x", "link/x", "B/run.json"):
        words = [place if word.startswith("OUT") else word for word in command.split()]
        assert cli(*words, code=2).err
        assert content(here) == before


@pytest.mark.parametrize("command", OFTEN)
def test_what_this_tool_wrote_is_replaced(here, command):
    """In another language as well."""
    for lang in ("en", "zh", "en"):
        assert main([*given(command, "out"), "--lang", lang]) in (0, 1, 2)
        for name in WRITES[command]:
            assert target(command, "out", name).stat().st_size
    assert not [name for name in content(here) if ".part" in name or "/." in name]
    assert not [*here.glob(".*"), *here.glob("out/.*")]


def test_a_workbook_that_was_changed_since_stays(here, cli):
    """A person's colours and remarks in it are the person's."""
    for command in ("check A -o OUT", "accuracy A -o OUT2"):
        words = command.replace("OUT2", "out2").replace("OUT", "out").split()
        main(words)
        table = next(Path(words[-1]).glob("*c*.xlsx"))
        book = openpyxl.load_workbook(table)
        book.worksheets[0]["A9"] = "a remark"
        book.save(table)
        before = content(here)
        assert table.name in cli(*words, code=2).err
        assert content(here) == before


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("compare A B -o OUT", "accuracy A -o OUT"),
        ("accuracy A -o OUT", "compare A B -o OUT"),
        ("compare A B -o OUT", "check A -o OUT/summary.xlsx"),
        ("trend A --key loss --csv OUT.json", "preflight collect -o OUT.json --overwrite"),
        ("preflight collect -o OUT.csv", "trend A --key loss --csv OUT.csv"),
    ],
)
def test_one_answer_does_not_replace_another(here, first, second):
    """Both are ours, but the first would be lost."""
    assert main(given(first, "out")) in (0, 1)
    before = content(here)
    assert main(given(second, "out")) == 2
    assert content(here) == before


@pytest.mark.parametrize("command", DIRECTORIES)
@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_an_answer_is_written_whole_or_not_at_all(here, monkeypatch, command, at):
    """Wherever it is interrupted: what was there before is there again."""
    main(given(command, "out"))
    write_lines(Path("A"), "opinions.rank0.jsonl", OPINION, OPINION)
    before, replace, calls = content(here), os.replace, []

    def interrupted(source, target):
        if str(here) in os.path.abspath(target) and "/A/" not in os.path.abspath(target):
            calls.append(target)
        if len(calls) == at:
            calls.append("")  # this one fails, none behind it
            raise OSError(28, "No space left on device")
        replace(source, target)

    for module in (staging.os, os):
        monkeypatch.setattr(module, "replace", interrupted)
    code = main(given(command, "out"))
    monkeypatch.undo()
    os.chdir(here)
    if len(calls) > at:
        assert code == 2
        assert content(here) == before


@pytest.mark.parametrize("command", OFTEN)
def test_a_full_disk_is_said_of_a_file(here, capsys, command):
    """`[Errno 27] File too large` alone does not say which; nothing is left behind."""
    before = content(here)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, limits[1]))
        code = main(given(command, "out"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    said = capsys.readouterr().err
    assert code == 2
    assert "out" in said
    assert "Errno" not in said
    assert content(here) == before


@pytest.mark.parametrize("command", DIRECTORIES)
def test_a_file_where_a_directory_is_asked_for(here, command, cli):
    """The file that was given is named, none of ours; `--json` is what prints JSON."""
    for suffix, there in ((".json", True), (".txt", True), (".json", False), (".csv", False)):
        path = Path(f"out{suffix}")
        path.write_text("mine") if there else path.unlink(missing_ok=True)
        before = content(here)
        said = cli(*given(command, path), code=2).err
        assert f"out{suffix}" in said
        assert "Errno" not in said
        assert ".part" not in said
        assert f"out{suffix}/" not in said
        assert content(here) == before
        assert path.exists() == there


def test_the_curves_of_tensorboard_are_new_files(here, cli):
    """Those of the run before stay; nothing is written into a run."""
    command = ["trend", "A", "--key", "loss", "--tensorboard"]
    cli(*command, "curves")
    before = content("curves")
    cli(*command, "curves")
    after = content("curves")
    assert before.items() <= after.items()
    assert len(after) == 2 * len(before)
    before = content(here)
    for place in ("A", "B/curves"):
        assert place in cli(*command, place, code=2).err
    assert content(here) == before


def test_gradients_are_written_by_the_same_door(here):
    """So is what the classes of msprobe's names write."""
    from mindrlhf_msprobe import RunError
    from mindrlhf_msprobe.compat.comparing import _write
    from mindrlhf_msprobe.trends.similarity import GradientTrend

    out = here / "A" / "x"
    with pytest.raises(RunError):
        _write(GradientTrend((), (), ()), 0, out)  # type: ignore[call-arg]


def test_what_collect_wrote_is_read_before_it_is_replaced(here, cli):
    """--overwrite is of what collect wrote, not of a manifest."""
    said = cli("preflight", "collect", "-o", "A/run.json", "--overwrite", code=2).err
    assert "A/run.json" in said
    assert json.loads(Path("A/run.json").read_text())["tool"] == "mindrlhf_msprobe"
    cli("preflight", "collect", "-o", "C.json", "--overwrite")


@pytest.mark.parametrize("file", ["/dev/zero", "pipe", "large", "none", "folder"])
def test_a_tokenizer_that_is_no_file_is_not_read_on_and_on(here, file, monkeypatch, cli):
    """`/dev/zero` has no end, and a pipe no beginning."""
    pytest.importorskip("tokenizers")
    from mindrlhf_msprobe.storage.arrays import bounds

    monkeypatch.setattr(bounds, "TOKENIZER", 1000)
    os.mkfifo("pipe")
    Path("large").write_text("{" + " " * 2000 + "}")
    (here / "folder").mkdir()
    os.mkfifo("folder/tokenizer.json")
    command = "mismatch A --phases actor_generate_sequences,actor_update --tokenizer"
    said = cli(*command.split(), file, code=2).err
    assert file in said
    assert "fault of this tool" not in said
