"""Messages: codes with parameters, and the words for them in each language."""

from __future__ import annotations

import ast
import inspect
import json
import re
import string
from pathlib import Path
from types import SimpleNamespace

import pytest
from report.messages.chosen import EXAMPLES

import mindrlhf_msprobe
from mindrlhf_msprobe.common.language import speaking
from mindrlhf_msprobe.common.message import Message, message, read_message, read_messages
from mindrlhf_msprobe.findings import CulpritCode, Status
from mindrlhf_msprobe.report.messages import LANGUAGES, areas, say, text_of, texts_in, words
from mindrlhf_msprobe.report.messages.templates import alternatives

PACKAGE = Path(str(mindrlhf_msprobe.__file__)).parent
TEXTS = PACKAGE / "report/messages/texts"
AREAS = sorted(area for area in areas() if not area.endswith(".pieces"))


def inside(name, spec):
    """Return the templates that stand inside a place of one."""
    if not name:
        return alternatives(spec)[1:]
    if condition := re.match(r"(\w+(?: \w+)?)?\?", spec):
        return alternatives(spec[condition.end() :])
    if spec[:1] == "=":
        return [one.split("->", 1)[1] for one in alternatives(spec[1:])]
    return alternatives(spec[1:])[:1] if spec[:1] == "*" else []


def places(text):
    """Yield (name, spec) of each place of a template, with those inside others."""
    for _, name, spec, _ in string.Formatter().parse(text):
        if name and not name[0].isdigit():
            first = re.split(r"[.\[]", name)[0]
            yield first, "&" if name == f"{first}[0]" else spec
        for one in () if name is None else inside(name, spec):
            yield from places(one)


def parameters(lang, area, text):
    """Return what a template must be given: what is said only under a condition may be left out."""
    others = texts_in(lang, f"{area}.pieces").keys() | words.CHOICES.get(area, {}).keys()
    top = (one for one in string.Formatter().parse(text) if one[1] and "?" not in one[2])
    return {re.split(r"[.\[]", name)[0] for _, name, _, _ in top} - others


def test_both_languages_say_the_same():
    """Every code has words in both, made of the same parameters."""
    for area in AREAS:
        english, chinese = texts_in("en", area), texts_in("zh", area)
        assert set(english) == set(chinese), area
        made = texts_in("en", f"{area}.pieces").keys() | texts_in("zh", f"{area}.pieces").keys()
        made |= words.CHOICES.get(area, {}).keys()
        for name in english:
            # English alone has plurals.
            of_en, of_zh = (
                {at for at, spec in places(of[name]) if not spec.startswith("one?")}
                for of in (english, chinese)
            )
            if not (of_en | of_zh) & made:
                assert of_en == of_zh, f"{area}.{name}"


@pytest.mark.parametrize("file", sorted(TEXTS.glob("*.json")), ids=lambda file: file.stem)
def test_sentences_stand_once_and_are_written_in_one_way(file):
    """A name that stands twice would hide a sentence; comments are under `#`."""

    def once(pairs):
        assert len({name for name, _ in pairs}) == len(pairs)
        return dict(pairs)

    text = file.read_text(encoding="utf-8")
    found = json.loads(text, object_pairs_hook=once)
    assert text == json.dumps(found, indent=2, ensure_ascii=False) + "\n"
    keys = [key for area in found if area != "#" for key in found[area]]
    assert all(re.fullmatch(r"#|\w+|\w+\.(#|en|zh)", key) for key in keys)


def test_equal_texts_stand_once():
    """A code that says what another one says names it, so that a correction reaches both."""
    stands, named = {}, set()
    for area, of in areas().items():
        named |= {text for key, text in of.items() if "." not in key and key != "#"}
        for name in {key.rpartition(".")[0] for key in of} - {""}:
            text = tuple(of.get(f"{name}.{lang}") for lang in LANGUAGES)
            stands.setdefault(text, []).append(f"{area}.{name}")
    assert [codes for codes in stands.values() if len(codes) > 1] == []
    assert named <= {codes[0] for codes in stands.values()}


@pytest.mark.parametrize("area", words.CHOICES)
def test_what_is_chosen_has_words_in_both_languages(area):
    """A choice names a piece: one that a language lacks would show the code instead of a text."""
    nodes = ast.walk(ast.parse(inspect.getsource(words)))
    named = {node.value for node in nodes if isinstance(node, ast.Constant)}
    english, chinese = (named & texts_in(lang, f"{area}.pieces").keys() for lang in LANGUAGES)
    assert english == chinese
    assert english


#: Values of a parameter, by the words that show it.
LISTS = {
    ("spans", "sorted", "numbers", "ranks"): [[3], [0, 2, 3]],
    ("ranges", "places"): [[[0, 2]], [[1, 1], [5, 7]]],
    ("changes", "pairs"): [[[2, 0]], [[2, 0], [4, 1]]],
    ("held",): [[4], [0, 1, 4]],
    ("epsilons",): [[1e-8], [1e-8, 1e-5]],
    ("&", "*", "quoted", "length", "last", "listed", "some", "few", "sections", "some_sections"): [
        ["§1"],
        [f"§{n}" for n in range(10)],
    ],
}
NUMBER = re.compile("#.*|(one|several|positive|negative)[?].*|(plus|size|bytes|millions|ordinal).*")


def reached(lang, area, text):
    """Yield (name, spec) of each place of a template, and of the pieces that it has."""
    pieces = texts_in(lang, f"{area}.pieces")
    for name, spec in places(text):
        yield name, spec
        word, _, prefix = spec.partition(" ")
        for piece in pieces:
            if piece == name or (word == "piece" and prefix and piece.startswith(prefix)):
                yield from reached(lang, area, pieces[piece])


def values_of(area, name, specs):
    """Return values of a parameter with which each text that they choose is said, "" last."""
    words = {spec[:1] if spec[:1] in ("&", "*") else spec.split(" ")[0] for spec in specs}
    conditions = {spec.partition("?")[0] for spec in specs if re.match(r"\w*\?", spec)}
    forms = [spec for spec in specs if re.fullmatch(r"[+]?[.,0-9]*[a-z%]|[,0-9]+", spec)]
    found = next((of for shapes, of in LISTS.items() if words & {*shapes}), [])
    if numbered := [spec.count("{") for spec in specs if spec[:1] == "*" and "{1" in spec]:
        found = [[["§1", "§2", "§3"][: max(numbered)]] * n for n in (1, 2)]
    if not found and any(NUMBER.fullmatch(spec) for spec in specs):
        found = [1, 2, *([-1] if conditions & {"positive", "negative"} else [])]
    elif not found and forms:
        found = [2 if forms[0][-1] in "d,5" else 1.5]
    if not found:
        texts = [alternatives(spec[1:]) for spec in specs if spec[:1] == "="]
        found = [key for of in texts for one in of if (key := one.split("->")[0])]
        pieces = texts_in("en", f"{area}.pieces")
        prefixes = [spec.removeprefix("piece ") for spec in specs if spec.startswith("piece ")]
        found += [p.removeprefix(of) for of in prefixes for p in pieces if p.startswith(of)]
    found = found or [name]
    nothing = {list: [], str: ""}.get(type(found[0]), 0)
    return [*found, *[nothing] * ("" in conditions), *[None] * ("known" in conditions)]


#: A word whose argument is another parameter, and how that one is shown.
OTHERS = {
    r"same (\w+)\?": "",
    r"many (\w+)\?": "#",
    r"(?:some(?:_sections)?|left|changes|pairs|non_finite) (?:of )?([a-z]\w*)": "#",
}


def made_up(area, name):
    """Return parameters of a text: each value of each, the others as first; [] if code chooses."""
    specs = {}
    for lang in LANGUAGES:
        for at, spec in reached(lang, area, texts_in(lang, area)[name]):
            specs.setdefault(at, []).append(spec)
            for other, shown in OTHERS.items():
                if argument := re.match(other, spec):
                    specs.setdefault(argument[1], []).append(shown)
            if spec == "unaccounted":
                specs |= {number: ["#", "?"] for number in ("others", "before", "by")}
    if specs.keys() & words.CHOICES.get(area, {}).keys():
        return []
    pieces = texts_in("en", f"{area}.pieces").keys() | texts_in("zh", f"{area}.pieces").keys()
    values = {at: values_of(area, at, of) for at, of in specs.items() if at not in pieces}
    first = {at: of[0] for at, of in values.items()}
    return [first, *({**first, at: one} for at, of in values.items() for one in of[1:])]


def examples(area):
    """Return parameters as they may be of the texts of an area, by name."""
    given = EXAMPLES.get(area, {})
    return {name: given.get(name) or made_up(area, name) for name in texts_in("en", area)}


@pytest.mark.parametrize("area", AREAS)
def test_every_text_is_made_in_both_languages(area):
    """Of parameters as they occur, also after they were read from JSON."""
    for name, cases in examples(area).items():
        assert cases, f"chosen.py: {area}.{name}"
        for params in cases:
            said = Message(f"{area}.{name}", params)
            english, chinese = (text_of(said, lang) for lang in LANGUAGES)
            for text in (english, chinese):
                assert not text.startswith(said.code), text
                assert None not in params.values() or "None" not in text, text
            assert not re.search("[\u4e00-\u9fff，。：；]", english), english
            again = read_message(said.as_json())
            assert (text_of(again, "en"), text_of(again, "zh")) == (english, chinese)


def test_every_culprit_and_every_status_that_differs_has_words():
    """Their codes are made of enums."""
    assert {code.value for code in CulpritCode} == set(texts_in("en", "culprit"))
    for status in Status:
        if not status.agrees:
            params = {"record": "r", "argument": "", "status": status.value, "note": ""}
            assert text_of(Message("explanation.happened", params), "zh").startswith("r ")


#: What is called with a code.
SAYING = ("message", "say", "saying", "note", "warn", "inform")


def calls():
    """Yield each code that is written out in the package, with what it is given."""
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if not any(f"{name}(" in source for name in SAYING):
            continue
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
            if name not in SAYING or not node.args:
                continue
            code = node.args[0]
            if isinstance(code, ast.Constant) and isinstance(code.value, str):
                of_objects = [None] if name == "say" and len(node.args) > 1 else []
                given = [*(one.arg for one in node.keywords), *of_objects]
                yield path.name, node.lineno, code.value, given


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_code_in_the_package_has_words_for_its_parameters(lang):
    """A code without words would be shown as it is."""
    for file, line, code, given in calls():
        area, _, name = code.partition(".")
        where = f"{file}:{line}: {code}"
        assert area in AREAS, where
        assert name in texts_in(lang, area), where
        if None not in given:  # **params, or attributes of what it is said of
            assert parameters(lang, area, texts_in(lang, area)[name]) <= set(given), where


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_code_that_is_not_known_is_said_as_it_is(lang):
    """A run of a newer version holds such ones."""
    assert text_of(message("coverage.no_such", cells=3), lang) == "coverage.no_such(cells=3)"
    assert text_of(message("no_such.area"), lang) == "no_such.area"
    assert text_of(message("../etc.passwd"), lang) == "../etc.passwd"


def test_a_sentence_is_said_of_what_was_found():
    """Its parameters are those given, then attributes; what nobody has is no error."""
    with speaking("en"):
        place = SimpleNamespace(step=3, rank=1)
        assert say("listing.in_time", place) == "step 3, rank 1, in the order of time:"
        assert say("listing.in_time", place, rank=0) == "step 3, rank 0, in the order of time:"
        assert say("listing.in_time", object(), step=3) == "listing.in_time(step=3)"


def test_a_text_of_somebody_else_stays_as_it_is():
    """What a trainer says itself has no code."""
    read = read_message("its gradients: they are not seen")
    assert read is not None
    assert text_of(read, "zh") == "its gradients: they are not seen"


def test_messages_survive_json():
    """Also those inside others."""
    inner = message("area.inner", n=1)
    outer = Message("area.outer", {"why": inner, "names": ["a", "b"], "none": None})
    assert read_message(outer.as_json()) == outer
    assert read_messages([outer.as_json(), 7, {"code": 3}, "text"])[0] == outer
    assert len(read_messages([outer.as_json(), 7, {"code": 3}, "text"])) == 2


@pytest.mark.parametrize("number", [float("inf"), -float("inf")])
def test_numbers_that_json_does_not_have_are_kept(number):
    said = message("check_rl.ratio", mean=number)
    assert read_message(json.loads(json.dumps(said.as_json(), allow_nan=False))) == said


#: Of one of them: a verb, or a name that ends so.
_NO_PLURAL = ("is", "was", "has", "does", "this", "its", "class", "pass", "process", "bias")
_NO_PLURAL += ("agrees", "leaves", "means", "series")
#: What is said of several alone, or has no number of its own before the word.
_OF_SEVERAL = {"check_rl.identical", "check_non_finite.stuck", "check_rl.clip_fraction"}
_OF_SEVERAL |= {"checkpoint.files_missing", "listing.changes", "pairing.batch_sizes"}
_OF_SEVERAL |= {"mismatch.rows_exchanged", "tokens.too_many", "config.too_many_patterns"}
_OF_SEVERAL |= {"trend.too_many_runs", "help.trend_describes", "help.compare_fail_on"}


@pytest.mark.parametrize("area", AREAS)
def test_one_is_not_said_as_several(area):
    """A count that is 1 has a noun and a verb of one; no text leaves both to the reader."""
    for name, cases in examples(area).items():
        for params in cases if f"{area}.{name}" not in _OF_SEVERAL else ():
            counted = {k for k, v in params.items() if type(v) is int and v > 0}
            one = {k: 1 if k in {"count", "total", *counted} else v for k, v in params.items()}
            said = text_of(Message(f"{area}.{name}", one), "en")
            found = re.findall(
                r"\b1 (?:of 1 )?(?:more )?([a-z]+s)\b(?: (are|have|do|were)\b)?", said
            )
            assert not [w for w in found if w[0] not in _NO_PLURAL], f"{area}.{name}: {said}"
            assert "(s)" not in said, f"{area}.{name}: {said}"


@pytest.mark.parametrize(
    ("code", "params", "english", "chinese"),
    [
        (
            "checkpoint.headline_identical",
            {"compared": 1},
            "IDENTICAL: the one parameter is equal.",
            "一致（IDENTICAL）：1 个权重全部逐位相等。",
        ),
        (
            "checkpoint.headline_within_tolerance",
            {"compared": 1},
            "WITHIN TOLERANCE: the one parameter agrees, but not bit for bit.",
            "容差内一致（WITHIN TOLERANCE）：1 个权重一致，但并非逐位一致。",
        ),
        (
            "checkpoint.headline_diverged",
            {"compared": 1, "different": 1},
            "DIVERGED: 1 of 1 parameter does not agree.",
            "存在差异（DIVERGED）：1 个权重中 1 个不一致。",
        ),
        (
            "checkpoint.headline_incomparable",
            {},
            "INCOMPARABLE: no parameter of A is in B. "
            "If they have other names there, use --mapping.",
            "无法比对（INCOMPARABLE）：A 侧没有任何权重出现在 B 侧。"
            "如果只是名称不同，请用 --mapping。",
        ),
        (
            "checkpoint.optimizer",
            {"count": 1, "agreeing": 1},
            "State of optimizers: 1 tensor, 1 agrees",
            "优化器状态：1 个张量，1 个一致",
        ),
        (
            "check_ranks.parted",
            {"parameters": 1, "of": 2, "rank": 1, "others": [0]},
            "1 of 2 parameters on rank 1 differs from that of rank 0; "
            "in earlier steps they agreed: the replicas diverged",
            "rank 1 的 1/2 个权重与 rank 0 不同，而此前的 step 一致：副本已不一致",
        ),
        (
            "check_weights.not_synchronised",
            {"count": 1, "total": 11, "first": "w", "still": 2},
            "1 of 11 parameters differs from the network that is trained, e.g. w; "
            "it is the one that the training had in step 2",
            "11 个权重中有 1 个与训练网络的不一致，例如 w，仍是训练网络在 step 2 时的权重",
        ),
        (
            "console.left_out",
            {"steps_after": [2]},
            "left out: step 2, which comes after it",
            "未纳入比对：首个差异点之后的 step 2",
        ),
        (
            "accuracy.unchecked",
            {"gaps": 1, "names": ""},
            "1 call has no opinion, so nothing was checked there",
            "1 次调用无结论，未作检查",
        ),
        (
            "console.weights",
            {"different": [], "compared": 0, "only_in_a": ["v", "w"], "only_in_b": ["x"]},
            "no parameter in common, 2 only in A, 1 only in B",
            "两侧没有同名的权重，2 个仅 A（标杆）有，1 个仅 B（待比对）有",
        ),
        ("mismatch.cause", {"cause": "weights"}, "cause: weights", "原因：权重（weights）"),
        (
            "remark.weights_agree_but",
            {"agree": "They agree", "but": "numpy …"},
            "They agree, but numpy ….",
            "They agree，但 numpy …。",
        ),
        (
            "console.not_finite",
            {"nan_a": 2, "inf_a": 0, "nan_b": 0, "inf_b": 1, "elements": 12},
            "A: 2 NaN, B: 1 Inf of 12 elements",
            "A：2 个 NaN，B：1 个 Inf（共 12 个元素）",
        ),
        (
            "console.difference",
            {"section": "cells", "name": "w", "a": "X", "b": "无"},
            "cells: w: X in A, 无 in B",
            "Cell 属性（cells）：w：A（标杆）为 X，B（待比对）为无",
        ),
    ],
)
def test_sentences_are_whole_in_both_languages(code, params, english, chinese):
    """Of one, of none, and where a name in Latin letters stands in a Chinese sentence."""
    assert [text_of(message(code, **params), lang) for lang in ("en", "zh")] == [english, chinese]


def test_weights_of_a_mismatch_say_what_more_of_them_differ():
    """Of parameters, and with the space between Latin and Chinese."""
    for count, more, chinese in (
        (2, ", as does 1 more parameter", "，另有 1 个权重也不同"),
        (5, ", as do 4 more parameters", "，另有 4 个权重也不同"),
    ):
        params = next(p for p in examples("mismatch")["weights"] if not p.get("parts"))
        said = message("mismatch.weights", **{**params, "name": "wq.weight", "count": count})
        assert more in text_of(said, "en")
        assert chinese in text_of(said, "zh")
        assert "wq.weight 与训练网络不同" in text_of(said, "zh")
