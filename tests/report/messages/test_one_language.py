"""Nothing of ours is said in English where Chinese is asked for: held mechanically."""

from __future__ import annotations

import argparse
import ast
import inspect
import re

import pytest
from report.messages.test_messages import AREAS, PACKAGE, examples, texts

from mindrlhf_msprobe.cli import parsing
from mindrlhf_msprobe.common.language import speaking
from mindrlhf_msprobe.common.message import Message, SpokenError
from mindrlhf_msprobe.config import load_config
from mindrlhf_msprobe.errors import ConfigError
from mindrlhf_msprobe.report.messages import text_of

CHINESE = re.compile("[\u4e00-\u9fff]")
#: Two English words behind each other: names, keys, paths and code are none.
ENGLISH = re.compile(r"(?<![\w./_<>{}'\"`=:-])[A-Za-z]*[a-z]{2,}(?:,? [a-z]{2,})+(?![\w/_.(=])")


def sources():
    """Yield each module of the package with its tree; messages have the words."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if "messages" not in path.relative_to(PACKAGE).parts[:-1]:
            yield path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def spoken_errors():
    """Return the names of the package's own errors that say something to a user."""
    known = {SpokenError.__name__}
    classes = [n for _, tree in sources() for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]
    while more := {
        node.name
        for node in classes
        if known & {ast.unparse(base) for base in node.bases} and node.name not in known
    }:
        known |= more
    return known


def test_every_error_of_ours_is_made_of_a_message():
    """A text would be in one language; it is made of the message where it is shown."""
    errors = spoken_errors()
    assert {"ConfigError", "PatternError", "OutputError", "UnreadError"} <= errors
    wrong = []
    for path, tree in sources():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) not in errors:
                continue
            for given in node.args:
                text = isinstance(given, (ast.JoinedStr, ast.Constant, ast.BinOp))
                made = isinstance(given, ast.Call) and ast.unparse(given.func) in ("say", "str")
                if text or made:
                    wrong.append(f"{path}:{node.lineno}: {ast.unparse(node)}")
    assert wrong == []


#: Words of the field that a Chinese engineer writes in English, each of two words.
TERMS = re.compile(
    "weight decay|loss scale|token id|forward, backward|Max diff|pip install|old policy"
    "|in (step|rank)|Ray (worker|actor)"
)
#: Names that stand alone between signs.
NAMES = re.compile("step|rank|micro_step|rtol|atol")


@pytest.mark.parametrize("area", AREAS)
def test_every_chinese_text_is_chinese(area):
    """But for signs and names."""
    for name, cases in examples(area).items():
        for params in cases:
            said = text_of(Message(f"{area}.{name}", params), "zh")
            bare = said
            for value in sorted(map(str, params.values()), key=len, reverse=True):
                bare = bare.replace(value, "")
            assert not ENGLISH.search(TERMS.sub("", bare)), f"{area}.{name}: {said}"
            words = CHINESE.search(said) or not re.search("[A-Za-z]", NAMES.sub("", bare))
            assert words or name in ("together", "sentence", "all"), f"{area}.{name}: {said}"


#: What the glossary calls otherwise.
NOT_OURS = re.compile(
    "一边|两边|journal|此前记录的|噪声水平|分歧|单元(?!格)|(?<!静态)图模式|micro-batch"
)
#: Where 参数 is an argument of a command, a call or a script, not a weight.
OF_ARGUMENTS = {"argument", "error", "cli", "help", "listing", "tables", "lost", "words"}


def test_one_thing_has_one_chinese_name():
    """As the glossary has it: 权重, 一侧, 流水文件, 噪声基线, 静态图模式."""
    wrong = []
    for path in sorted((PACKAGE / "report" / "messages" / "zh").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                said = re.sub("{.*?}", "", node.value)
                parameter = "参数" in said and path.stem not in OF_ARGUMENTS
                if CHINESE.search(said) and (parameter or NOT_OURS.search(said)):
                    wrong.append(f"{path.name}:{node.lineno}: {node.value}")
    assert wrong == []


def test_argparse_says_nothing_that_has_no_words_of_ours():
    """All that it looks up, but for what is wrong with a program's own parser."""
    of_developers = re.compile(
        "conflict|must be|cannot (have|merge)|not callable|not defined|is an invalid|"
        "is required for|invalid (option string|conflict)|mode %r|can't open|unexpected option|"
        r"error: %\(message"
    )
    looked_up = {
        part.value
        for node in ast.walk(ast.parse(inspect.getsource(argparse)))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("_", "ngettext")
        for part in node.args
        if isinstance(part, ast.Constant)
    }
    assert len(looked_up) > 20
    assert {text for text in looked_up if not of_developers.search(text)} <= set(parsing.WORDS)
    assert set(parsing.WORDS.values()) == set(texts("en", "argument"))


def test_argparse_of_others_keeps_its_words():
    """The script that `run` starts has a parser of its own."""
    before = vars(argparse)["_"]
    with speaking("zh"):
        with parsing.in_our_words():
            assert "必需" in vars(argparse)["_"]("the following arguments are required: %s")
        assert vars(argparse)["_"] is before


def test_an_error_speaks_the_language_in_which_it_was_made():
    """Also when it is caught later; its repr shows its text, and nothing of how it is made."""
    with speaking("zh"), pytest.raises(ConfigError) as refused:
        load_config({"dumppath": 1})
    assert "未知的键" in str(refused.value)
    assert repr(refused.value) == f"ConfigError({str(refused.value)!r})"


def kinds_of_faults():
    """Yield what the package counts faults of, where it is written out: `fault("a tensor", …)`."""
    counting = re.compile("(^|[._])(fault|report|guarded|tried|counted|Guarded|Tried|lost)$")
    for path, tree in sources():
        if not path.startswith(("capture/", "storage/writing/")):
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not counting.search(ast.unparse(node.func)):
                continue
            for given in node.args:
                if isinstance(given, ast.JoinedStr):
                    parts = (p.value if isinstance(p, ast.Constant) else "x" for p in given.values)
                    yield path, "".join(map(str, parts))
                elif isinstance(given, ast.Constant) and isinstance(given.value, str):
                    yield path, given.value


def test_what_was_lost_is_said_in_chinese():
    """The kinds of run.json's `lost` are names in the code: each has words."""
    kinds = sorted(set(kinds_of_faults()))
    assert len(kinds) > 20
    for path, kind in kinds:
        said = text_of(Message("lost.records", {"rank": 0, "count": 1, "what": f"{kind}: E"}), "zh")
        assert kind not in said.partition("：")[2] or not re.search("[a-z] [a-z]", kind), (
            path,
            kind,
        )
