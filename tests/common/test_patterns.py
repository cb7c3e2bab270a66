"""Patterns from files: Python's meaning, matched in linear time, and refused where that is not to
be had."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mindrlhf_msprobe.common import patterns
from mindrlhf_msprobe.common.patterns import Pattern, PatternError, Renaming, RenamingSet
from mindrlhf_msprobe.comparison.judging.tolerance import load_rules
from mindrlhf_msprobe.comparison.pairing.mapping import load_cells
from mindrlhf_msprobe.comparison.pairing.names import NameRule
from mindrlhf_msprobe.config import ProbeConfig, load_config
from mindrlhf_msprobe.errors import ConfigError

HANGS = ["(a+)+$", "(a|aa)+$", "^(a|a?)+$", r"(.*a){25}$", r"^(\w+\.?)+$", "(x*)*y"]
NAME = "a" * 4000 + "!"
ATOMS = ["a", "b", r"\.", r"\d", r"\w", "[ab]", "[^a]", "(a)", "(?:b|1)", r"\s", "^", "(?i:B)"]
ATOMS += ["(a|b)", r"[\W_]", r"[^\W\d]", r"\D", r"\S", ".", r"[^\S_]", "(?s:.)", "é", r"\x41"]
REPEATS = ["", "", "", "*", "+", "?", "{1,2}", "*?", "{2}", "+?"]


@pytest.mark.parametrize("text", HANGS)
def test_no_pattern_takes_longer_than_the_name_is_long(text):
    """What `re` would search for ages is answered, and rightly: the name does not match."""
    assert not Pattern(text).search(NAME)
    assert Pattern(text).search("aay") is (re.search(text, "aay") is not None)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(ATOMS), st.sampled_from(REPEATS)), max_size=6),
    st.sampled_from(["", "$", r"\Z"]),
    st.text("ab.1_ \nBAé٣中ß\x1c\u2003", max_size=8),
)
@example([("a", "")], "$", "a\n")
@example([(r"\d", "")], "", "٣")
def test_a_pattern_means_what_python_means_by_it(parts, end, name):
    """Searching, and renaming whole names with their groups, is what `re` makes of it."""
    text = "".join(atom + repeat for atom, repeat in parts) + end
    try:
        expected = re.compile(text)
    except re.error:
        return
    assert Pattern(text).search(name) is (expected.search(name) is not None)
    groups = expected.groups
    target = "-".join(f"\\{number}" for number in range(1, groups + 1)) + "x"
    whole = re.compile(rf"(?:{text})(\..+)?").fullmatch(name)
    renamed = None if whole is None else whole.expand(target) + (whole[groups + 1] or "")
    assert Renaming(text, target).rename(name) == renamed


@pytest.mark.parametrize("memory", [1 << 20, 4 << 20, 256 << 20])
def test_of_many_renamings_those_are_found_that_mean_a_name(monkeypatch, memory):
    """As if each were tried; whether all of them fit into the memory, or a few at a time."""
    monkeypatch.setattr(patterns, "_SET_MEMORY", memory)
    ends = [f"{repeat}{end}" for repeat in ("", "*", "{1,2}") for end in ("a", r"\.b", "")]
    texts = [f"(?:{atom}){end}" for atom in ATOMS for end in ends]
    renamings = [Renaming(text, "x") for text in texts]
    found = RenamingSet(renamings)
    for name in ("a", "ab", "b.b", "1.b.c", "aa.b", "_", "", "\ud800", "\0"):
        expected = [n for n, one in enumerate(renamings) if one.rename(name) is not None]
        assert found.matching(name) == expected


@pytest.mark.parametrize(
    ("text", "name", "matches"),
    [
        (r"\bhead\b", "lm.head.0", True),
        (r"\bhead\b", "lm_head", False),
        (r"(?i)ATTENTION", "layers.0.attention", True),
        (r"(?x) layers \. \d+  # a comment", "layers.12", True),
        (r"(?m)^b$", "a\nb\nc", True),
        (r"(?a)\d", "٣", False),
        (r"(?a)[^\w]", "é", True),
        (r"a\Z", "a\n", False),
        ("", "anything", True),
        ("层", "模型.层.0", True),
        ("a", "\ud800a", True),
        (r"^.$", "\ud800", True),
    ],
)
def test_what_is_written_otherwise_for_re2_keeps_its_meaning(text, name, matches):
    """Flags, boundaries, ends, Chinese, and names that are no Unicode text."""
    assert Pattern(text).search(name) is matches


@pytest.mark.parametrize(
    ("text", "named", "instead"),
    [
        (r"layers\.(?!0)\d", "looks ahead or behind", "exclude"),
        (r"(?=a)b", "looks ahead or behind", "into the pattern itself"),
        (r"(?<=a)b", "looks ahead or behind", "into the pattern itself"),
        (r"(?<!a)b", "looks ahead or behind", "exclude"),
        (r"(a)\1", "refers back to a group", "with | between"),
        (r"(?P<x>a)(?P=x)", "refers back to a group", "with | between"),
        (r"(a)?(?(1)b|c)", "whether a group matched", "both cases"),
        ("((a{1000}){1000}){1000}", "too large", "shorter"),
        ("a" * 5000, "5000 characters", "at most 4096"),
        ("(" * 4000, "nested too deeply", ""),
        ("\ud800", "not valid Unicode", ""),
    ],
)
def test_what_linear_matching_cannot_do_is_refused_everywhere(text, named, instead, tmp_path):
    """The configuration, rules and mappings name the pattern, the part, and what to write."""
    with pytest.raises(PatternError, match=re.escape(named)) as refusal:
        Pattern(text)
    assert instead in str(refusal.value)
    for name in ("include", "exclude"):
        with pytest.raises(ConfigError, match=re.escape(named)) as wrong:
            ProbeConfig(**{name: [text]})
        assert f"msprobe_config.{name}[0] is {text!r}" in str(wrong.value)
    if "\ud800" in text:
        return
    file = tmp_path / "file.yaml"
    file.write_text(f"? {json.dumps(text)}\n: {{rtol: 1}}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(named)):
        load_rules(file)
    file.write_text(f"? {json.dumps(text)}\n: b\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(named)):
        load_cells(file)


def test_a_mapping_may_name_its_groups():
    """Targets are Python's: numbers, names, a backslash; groups that did not match are empty."""
    rule = NameRule(r"net\.(?P<n>\d+)(?:\.(?P<what>norm))?", r"model.\g<n>.x\g<what>\\\1")
    assert rule.rename("net.7.norm") == r"model.7.xnorm\7"
    assert rule.rename("net.7.dense.0") == r"model.7.x\7.dense.0"
    assert rule.rename("net.x") is None
    assert NameRule("blocks.*.(a)", "layers.*.b").rename("blocks.3.(a).wq") == "layers.3.b.wq"


def test_too_many_patterns_are_refused():
    """Each is tried on every cell."""
    with pytest.raises(ConfigError, match="at most 1000"):
        ProbeConfig(include=["a"] * 1001)


MERGED = "a0: &a0 {x: 1}\n" + "".join(
    f"a{i}: &a{i}\n  <<: [*a{i - 1}, *a{i - 1}, *a{i - 1}]\n" for i in range(1, 40)
)
NESTED = "a0: &a0 [1, 1]\n" + "".join(
    f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}, *a{i - 1}]\n" for i in range(1, 60)
)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (MERGED, "with its aliases written out it stands for more than"),
        (NESTED, "with its aliases written out it stands for more than"),
        ("a: &a [*a]", "contains itself"),
        ("a: " + "[" * 5_000, "nested too deeply"),
        ("a: " + "9" * 5000, "a number of 5000 characters"),
        ("a: 0x" + "f" * 100_000, "a number of"),
        ("a: 1" + ":1" * 100_000, "a number of"),
        ("a: !!timestamp never", "does not fit its tag"),
        ("a: !!bool maybe", "does not fit its tag"),
        ("a: !!float ''", "does not fit its tag"),
        (
            "a: {" + ", ".join(f"{i * (2**61 - 1)}: 1" for i in range(1, 2000)) + "}",
            "are not texts",
        ),
        ("#" * (3 << 20), "larger than 2 MiB"),
    ],
)
def test_a_yaml_file_that_stands_for_too_much_is_refused(tmp_path, content, said):
    """It is refused before what it stands for is made, and with its name."""
    file = tmp_path / "bomb.yaml"
    file.write_text(content)
    for read in (load_config, load_rules, load_cells):
        with pytest.raises(ConfigError, match=said) as refusal:
            read(file)
        assert str(refusal.value).startswith(str(file))
        assert len(str(refusal.value)) < 1000


def test_yaml_with_aliases_and_merge_keys_is_still_read(tmp_path):
    """What people write with them is far below the bound."""
    file = tmp_path / "config.yaml"
    shared = "".join(f"m{i}: {{<<: *base, name: {i}}}\n" for i in range(200))
    own = "msprobe_config: {<<: *probe, dump_path: there}\n"
    file.write_text("base: &base {a: 1, b: 2}\nprobe: &probe {msprobe: true}\n" + shared + own)
    assert load_config(file).dump_path == "there"
    assert load_config(file).msprobe
