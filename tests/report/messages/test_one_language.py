"""Nothing of ours is said in English where Chinese is chosen: held mechanically."""

from __future__ import annotations

import argparse
import ast
import functools
import inspect
import re

import pytest
from report.messages.test_messages import AREAS, PACKAGE, examples

from mindrlhf_msprobe.cli import parsing
from mindrlhf_msprobe.common.language import speaking
from mindrlhf_msprobe.common.message import Message, SpokenError, message, read_message
from mindrlhf_msprobe.config import load_config
from mindrlhf_msprobe.errors import ConfigError
from mindrlhf_msprobe.report.messages import areas, text_of, texts_in

CHINESE = re.compile("[\u4e00-\u9fff]")
#: Two English words behind each other: names, keys, paths and code are none.
ENGLISH = re.compile(r"(?<![\w./_<>{}'\"`=:-])[A-Za-z]*[a-z]{2,}(?:,? [a-z]{2,})+(?![\w/_.(=])")


@functools.cache
def sources():
    """Return each module of the package with its tree; messages have the words."""
    return [
        (path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text(encoding="utf-8")))
        for path in sorted(PACKAGE.rglob("*.py"))
        if "messages" not in path.relative_to(PACKAGE).parts[:-1]
    ]


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


#: Two words behind each other, or one that joins others, in what is written out in the code.
SENTENCE = re.compile(r"(?<!\w)[a-z]{2,},? [a-z]{2,}(?!_)| (?:and|or|of|in|to) ")
#: What takes something to say, beside the logger's methods.
SAYING = {"log_once", "warn_once", "leave_out", "leave_out_data", "note_lost", "print", "complain"}
#: Python's own errors, which say what Python says where an attribute is missing or cannot be set.
OF_PYTHON = {("__init__.py", "AttributeError"), ("common/frozen.py", "TypeError")}
OF_PYTHON |= {("common/frozen.py", "dataclasses.FrozenInstanceError")}


def written_out(*nodes):
    """Return the texts that stand in these expressions, of f-strings the whole."""
    found = []
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            parts = (p.value if isinstance(p, ast.Constant) else "{}" for p in node.values)
            found.append("".join(map(str, parts)))
        elif isinstance(node, ast.Constant):
            found += [node.value] if isinstance(node.value, str) else []
        else:
            found += written_out(*ast.iter_child_nodes(node))
    return found


def said_in_words(tree):
    """Yield each call that says something in words that stand in the code."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        last = name.rpartition(".")[2]
        texts = written_out(*node.args, *(given.value for given in node.keywords))
        if "logger" in name.split("."):
            wrong = [text for text in texts if re.search("[a-z] ?[a-z]", text.replace("%s", ""))]
            # Codes of messages have a point, names of parameters' keys no space.
            wrong = [text for text in wrong if not re.fullmatch(r"\w+(\.\w+)*", text)]
        elif last in SAYING or re.search("(Error|Exception|Warning|NotThere|Exit)$", last):
            wrong = list(filter(SENTENCE.search, texts))
        elif last in ("message", "say", "saying", "note", "warn", "inform"):
            wrong = list(filter(SENTENCE.search, texts[1:]))
        else:
            continue
        if wrong:
            yield node.lineno, name, wrong


def test_nothing_is_said_in_words_that_stand_in_the_code():
    """Not by a log line, not by an error of any kind, not by a parameter of a message."""
    wrong = [
        (path, *found)
        for path, tree in sources()
        for found in said_in_words(tree)
        if (path, found[1]) not in OF_PYTHON
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "code",
    [
        "logger.warning('nothing was saved')",
        "logger.info('%s: %s is gone', path, name)",
        "log.logger.error(f'{name} failed')",
        "raise ValueError(f'the dtype {name} holds no numbers')",
        "raise OSError(17, 'a file of others', path)",
        "error = LookupError('it came ' + 'too late')",
        "shared.warn_once(f'{name} is still open')",
        "message('error.lang', join=' or '.join(names))",
    ],
)
def test_words_in_the_code_are_found(code):
    """What the test above looks for."""
    assert list(said_in_words(ast.parse(code)))


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
            assert words or name in ("sentence", "sections"), f"{area}.{name}: {said}"


#: What has another name in the glossary.
NOT_OURS = re.compile(
    "一边|两边|journal|此前记录的|噪声水平|分歧|单元(?!格)|(?<!静态)图模式|micro-batch"
)
#: Where 参数 is an argument of a command, a call or a script, not a weight.
OF_ARGUMENTS = {"argument", "cli", "coverage", "error", "help", "listing", "lost", "tables"}


def test_one_thing_has_one_chinese_name():
    """As the glossary has it: 权重, 一侧, 流水文件, 噪声基线, 静态图模式."""
    wrong = []
    for area in areas():
        for name, said in texts_in("zh", area).items():
            parameter = "参数" in said and area.removesuffix(".pieces") not in OF_ARGUMENTS
            if parameter or NOT_OURS.search(re.sub("{[a-z_]*}", "", said)):
                wrong.append(f"{area}.{name}: {said}")
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
    assert set(parsing.WORDS.values()) == set(texts_in("en", "argument"))


def test_argparse_of_others_keeps_its_words():
    """The script that `run` starts has a parser of its own."""
    before = vars(argparse)["_"]
    with speaking("zh"):
        with parsing.in_our_words():
            assert "必需" in vars(argparse)["_"]("the following arguments are required: %s")
        assert vars(argparse)["_"] is before


def test_an_error_of_pythons_kinds_that_is_made_of_a_message_is_said_in_any_language():
    """It passes through other messages, and files, as its code; alone it speaks the process's."""
    outer = message(
        "unread.at", path="save()", why=TypeError(message("fault.no_numbers", dtype="O"))
    )
    read = read_message(outer.as_json())
    assert read is not None
    assert text_of(read, "en") == "save(): dtype O holds no numbers"
    assert text_of(read, "zh") == "save()：dtype O 不是数值类型"
    assert text_of(message("unread.at", path="f()", why=OSError("own")), "zh") == "f()：own"
    taken = FileExistsError(17, message("fault.of_others"), "x.npy")
    for lang, words in (
        ("en", "a file that is not the probe's stands there"),
        ("zh", "该处已有其他来源的文件"),
    ):
        with speaking(lang):
            assert str(taken) == f"[Errno 17] {words}: 'x.npy'"


def test_an_error_speaks_the_language_in_which_it_was_made():
    """Also when it is caught later; its repr shows its text, and nothing of how it is made."""
    with speaking("zh"), pytest.raises(ConfigError) as refused:
        load_config({"dumppath": 1})
    assert "未知的键" in str(refused.value)
    assert repr(refused.value) == f"ConfigError({str(refused.value)!r})"


def test_what_is_lost_is_counted_by_a_code():
    """Each kind of run.json's `lost` has words in both languages: none is a text in the code."""
    counting = re.compile(r"(^|[._])(fault|report|guard|Counted|hand_over\w*)$")
    codes, wrong = set(), []
    for path, tree in sources():
        if not path.startswith(("capture/", "storage/writing/")):
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not counting.search(ast.unparse(node.func)):
                continue
            for given in node.args:
                if isinstance(given, ast.JoinedStr):
                    wrong.append(f"{path}:{node.lineno}: {ast.unparse(given)}")
                elif isinstance(given, ast.Constant) and isinstance(given.value, str):
                    codes.add(given.value)
    assert wrong == []
    assert len(codes) > 20
    assert codes - {""} <= {f"lost.{name}" for name in texts_in("en", "lost")}
