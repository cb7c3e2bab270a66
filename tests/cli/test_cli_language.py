"""The language of the command line: the locale's, or the one that --lang names."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from helpers.runs import Fault, record_training
from hypothesis import given
from hypothesis import strategies as st

from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.common.language import language, speaking
from mindrlhf_msprobe.report.comparison import render
from mindrlhf_msprobe.report.terminal import width_of, wrapped


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a directory with a run `a`, an equal one and one `b` with a fault."""
    root = tmp_path_factory.mktemp("runs")
    record_training(root / "a", steps=1)
    record_training(root / "same", steps=1)
    record_training(root / "b", steps=1, faults=[Fault("layers.1.mlp", "actor_update")])
    return root


def command(runs, *arguments, **variables):
    """Run a command in a process of its own; return all that it says."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG"))}
    result = subprocess.run(
        [sys.executable, "-m", "mindrlhf_msprobe", *arguments],
        cwd=runs,
        env={**environment, "PYTHONUTF8": "1", **variables},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert "Traceback" not in result.stderr
    return result.stdout + result.stderr


@pytest.mark.parametrize(
    ("arguments", "chinese", "english"),
    [
        (("compare", "a", "b", "-o", "out"), "首个差异点：step 0", "DIVERGED at step 0"),
        (("compare", "a", "same", "-o", "out2"), "逐位一致", "agree bit for bit"),
        (("show", "a"), "已完成", "finished"),
        (("estimate", "a"), "剩余空间", "are free at"),
        (("merge", "-o", "merged", ""), "路径为空", "the path of a run is empty"),
        (("demo", "--output", "demo", "--steps", "0"), "应为", "expected 1 or more"),
        (("run", "--help"), "启动训练的脚本", "the script that starts the training"),
    ],
)
def test_every_command_speaks_the_locales_language(runs, arguments, chinese, english):
    """LANG=zh_CN gives Chinese in a real process; --lang en gives English all the same."""
    assert chinese in command(runs, *arguments, LANG="zh_CN.UTF-8")
    said = command(runs, *arguments, "--lang", "en", LANG="zh_CN.UTF-8")
    assert english in said


def test_lang_zh_needs_no_locale(runs, monkeypatch, cli):
    """Also where the locale is English, and beside what argparse complains of."""
    monkeypatch.setenv("LC_ALL", "C")
    assert "保存次数/条目数" in cli("show", runs / "a", "--lang", "zh").out
    assert "用法见" in cli("show", "--lang=zh", code=2).err
    assert language() == "en"


def test_the_options_of_a_script_are_its_own(tmp_path, capsys):
    """`run --lang zh SCRIPT --lang x`: the first is ours, the second the script's."""
    script = tmp_path / "script.py"
    script.write_text("import sys; print(sys.argv[1:])")
    main(["run", "--lang", "zh", str(script), "--lang", "fr"])
    assert "['--lang', 'fr']" in capsys.readouterr().out


def test_keywords_are_the_same_in_every_language(runs):
    """Statuses, causes and what is to be pasted stay: scripts and people look for them."""
    result = compare_runs(runs / "a", runs / "b")
    english, chinese = render(result, lang="en"), render(result, lang="zh")
    for keyword in ("DIVERGED", "computation", "different", "identical", "msprobe_config: {"):
        assert keyword in english
        assert keyword in chinese
    pasted = [
        [line for line in text.splitlines() if "msprobe_config:" in line]
        for text in (english, chinese)
    ]
    assert pasted[0] == pasted[1]


def test_every_line_of_the_answer_is_chinese(runs):
    """But for names, settings, and what others say."""
    result = compare_runs(runs / "a", runs / "b")
    said = render(result, 0.1, lang="zh").splitlines()
    english = ("Before it", "After it", "Look closer", "cause:", "max abs", "Not compared")
    assert not [line for line in said if line.strip().startswith(english)]


def test_the_language_is_chosen_for_a_block_alone(monkeypatch):
    """Then it is what it was."""
    monkeypatch.setenv("LC_ALL", "C")
    with speaking("zh"):
        with speaking("en"):
            assert language() == "en"
        with speaking(None):
            assert language() == "zh"
    assert language() == "en"


def test_verdict_json_has_the_same_keys_in_both_languages(runs, tmp_path):
    """Machines read it whatever the language."""
    found = {}
    for lang in ("en", "zh"):
        compare_runs(runs / "a", runs / "b", output_path=tmp_path / lang, lang=lang)
        found[lang] = json.loads((tmp_path / lang / "verdict.json").read_text(encoding="utf-8"))
    assert found["en"].keys() == found["zh"].keys()
    assert found["en"]["first_divergence"].keys() == found["zh"]["first_divergence"].keys()
    assert found["en"]["counts"] == found["zh"]["counts"]


_TEXT = st.text("ab.-/，。（）《step 存在差异：×→…", max_size=300)


@given(_TEXT, st.integers(40, 120))
def test_a_broken_line_says_the_same(line, width):
    """No character is lost or added but spaces, and no line is wider than it has to be."""
    lines = wrapped(line, width)
    assert "".join("".join(lines).split()) == "".join(line.split())
    for part in lines:
        longest = max(map(width_of, part.replace("，", "， ").split()), default=0)
        assert width_of(part) <= width or longest > width - 20 or "（" in part or "《" in part


def test_a_chinese_line_is_broken_by_its_width():
    """A character takes two columns; no line begins with what ends a sentence."""
    lines = wrapped("  " + "首个差异点在这一层，之后的各层都受影响。" * 10, 80)
    assert len(lines) > 4
    assert all(width_of(line) <= 82 for line in lines)
    assert not [line for line in lines if line.lstrip()[:1] in "，。"]


def test_a_path_is_never_cut():
    """It is longer than the line: it stays whole, to be copied."""
    path = "/" + "x" * 200
    assert any(path in line for line in wrapped(f"Tables: {path} and 3 more", 80))


@pytest.mark.parametrize(("terminal", "longest"), [(True, 60), (False, 10_000)])
def test_lines_are_broken_on_a_terminal_alone(runs, monkeypatch, capsys, terminal, longest):
    """Piped output stays a line a line, for grep."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    monkeypatch.setenv("COLUMNS", "60")
    main(["compare", str(runs / "a"), str(runs / "b"), "-o", str(runs / "o"), "--lang", "en"])
    lines = capsys.readouterr().out.splitlines()
    breakable = [line for line in lines if " " in line.strip()]
    assert max(map(len, breakable)) <= longest
    assert terminal or max(map(len, breakable)) > 120


#: What settings, rules and mappings may look like, and an argument that takes such a file.
FILES = [
    ("estimate a --config", "msprobe_config: {dumppath: 1}"),
    ("estimate a --config", "msprobe_config: {step_start: 3}"),
    ("estimate a --config", "msprobe_config: {include: ['(?=a)']}"),
    ("estimate a --config", "msprobe_config: {include: [3]}"),
    ("estimate a --config", "msprobe_config: {directions: []}"),
    ("estimate a --config", "msprobe_config: {phases: {data: a}}"),
    ("estimate a --config", "msprobe_config: {scope: [a]}"),
    ("estimate a --config", "msprobe_config: {steps: [9]}"),
    ("estimate a --config", "msprobe_config: {msprobe: 'yes'}"),
    ("estimate a --config", "msprobe_config: {ranks: 0}"),
    ("estimate a --config", "msprobe_config: 3"),
    ("estimate a --config", "a: 1"),
    ("estimate a --config", "a: &a [*a]"),
    ("estimate a --config", ""),
    ("compare a b --tolerance", "a: {rtol: -1}"),
    ("compare a b --tolerance", "a: {rtl: 1}"),
    ("compare a b --tolerance", "a: 3"),
    ("compare a b --tolerance", "'(?<=a)b': {rtol: 1}"),
    ("compare a b --mapping", "'(.*)': '\\2'"),
    ("compare a b --mapping", "a: 3"),
    ("compare a b -cm", "a: {b: 3}"),
    ("compare a b -am", "- {foo: 1}"),
    ("compare a b -am", "- {ms_api: abs}"),
    ("compare a b -am", "- {ms_api: F.a, pt_api: T.a, ms_args: [0], pt_args: []}"),
    ("compare a b -lm", "a: 3"),
]
COMMANDS = [
    "compare",
    "compare a b c",
    "compare a b --rtol -1",
    "compare a b --rtol x",
    "compare a b --engine x",
    "compare a b --nosuch",
    "compare a b --ranks 0",
    "show",
    "show a --step x",
    "show a --step 9",
    "merge a",
    "merge a a -o m",
    "estimate a --steps 0",
    "estimate a --directions x",
    "bogus",
    "check nope",
    "trend nope",
]
#: Two English words behind each other that are no names in a list, no key and no code.
TWO_WORDS = re.compile(r"(?<![\w./_<>{}'\"`=:,-] )(?<![\w./_<>{}'\"`=:-])\b[a-z]{2,} [a-z]{2,}\b")


@pytest.mark.parametrize(("given", "content"), [*FILES, *((one, None) for one in COMMANDS)])
def test_no_error_has_an_english_word_in_chinese(runs, tmp_path, monkeypatch, given, content, cli):
    """Settings, rules, mappings and arguments: but for names, and what is to be typed."""
    monkeypatch.chdir(runs)
    arguments = given.split()
    if content is not None:
        file = tmp_path / "given.yaml"
        file.write_text(content)
        arguments.append(str(file))
    with contextlib.suppress(SystemExit):  # argparse's
        said = cli(*arguments, "--lang", "zh", code=2).err.replace(
            "mindrlhf-msprobe " + arguments[0], ""
        )
    assert re.search("[\u4e00-\u9fff]", said), said
    assert not TWO_WORDS.search(said), said


#: Four English words in a row are a sentence; names, keys and paths are none.
ENGLISH = re.compile(r"(?<![\w./_-])[A-Za-z]+(?:,? [a-z]+){3,}(?![\w/_])")


def test_what_is_damaged_is_said_in_chinese(runs, tmp_path, cli):
    """Files that are gone or cut short, in the console, in show and in verdict.json."""
    damaged = tmp_path / "damaged"
    shutil.copytree(runs / "b", damaged)
    (damaged / "configurations.json").write_text("[1")
    journals = sorted(damaged.rglob("records.jsonl"))
    journals[0].write_text(journals[0].read_text()[:-40] + "\n")
    journals[1].unlink()
    shutil.rmtree(next(damaged.glob("data/*")))
    said = {}
    for lang in ("en", "zh"):
        output = tmp_path / lang
        given = ("compare", str(runs / "a"), str(damaged), "-o", str(output), "--lang", lang)
        compared = cli(*given, code=1)
        shown = cli("show", damaged, "--lang", lang, code=2)
        written = json.loads(next(output.rglob("verdict.json")).read_text(encoding="utf-8"))
        assert written["problem_codes"]
        texts = (compared.out, compared.err, shown.out, shown.err)
        said[lang] = [*"\n".join(texts).splitlines(), *written["problems"]]
        said[lang].append(written["first_divergence"]["explanation"])
    assert any(map(ENGLISH.search, said["en"]))
    assert [line for line in said["zh"] if ENGLISH.search(line)] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "nowhere"),
        ("show", "."),
        ("show", "a", "los"),
        ("compare", "a", "a"),
        ("compare", "a", "b", "--steps", "9"),
        ("compare", "a", "b", "--steps", "x"),
        ("compare", "a", "b", "--keys", "lss"),
        ("compare", "a", "b", "--include", "zzz"),
        ("compare", "a", "b", "--phases", "actor_updat,critic_update"),
        ("compare", "a", "b", "--tolerance", "nowhere.yaml"),
        ("compare", "a", "b", "-o", "a/tables"),
        ("compare", "a", "b", "--noise", "a"),
        ("compare", "a", "b", "--after", "nowhere"),
        ("estimate", "a", "--config", "nowhere.yaml"),
        ("merge", "a", "-o", "merged"),
        ("merge", "a", "b", "-o", "merged"),
    ],
)
def test_what_was_asked_for_wrongly_is_said_in_chinese(runs, monkeypatch, arguments, cli):
    """Errors are messages: the same call says the same in both languages."""
    monkeypatch.chdir(runs)
    said = {}
    for lang in ("en", "zh"):
        with contextlib.suppress(SystemExit):  # argparse's
            said[lang] = cli(*arguments, "--lang", lang, code=2).err
    assert not re.search("[\u4e00-\u9fff]", said["en"])
    assert not ENGLISH.search(said["zh"])
    assert re.search("[\u4e00-\u9fff]", said["zh"]), said["zh"]
