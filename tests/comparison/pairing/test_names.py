"""Runs whose cells have other names: prefixes of wrappers, and a mapping by the user."""

from __future__ import annotations

import json

import pytest
from helpers.runs import Fault, record_training, slightly_more
from helpers.snapshots import rewrite

from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.common.patterns import Renaming
from mindrlhf_msprobe.comparison.pairing.mapping import load_cells
from mindrlhf_msprobe.comparison.pairing.names import NameRule, match_names
from mindrlhf_msprobe.comparison.pairing.parameters import check_mapping, pair_parameters
from mindrlhf_msprobe.errors import ConfigError, UsageError
from mindrlhf_msprobe.findings import Cause, Outcome, Status
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.records import Record

REFERENCE = "reference_compute_log_prob"


def record(path, rename=None, wrappers=(), **settings):
    """Record a training whose cells are renamed, with further cells around the network."""
    run = record_training(path, steps=1, key_data_dump=False, **settings)
    for journal in run.rglob("records.jsonl"):
        lines = [json.loads(line) for line in journal.read_text().splitlines()]
        written = []
        for line in lines:
            cell = line["entry"].removeprefix("Cell.").rsplit(".", 3)[0]
            call = line["entry"].rpartition(".")[2]
            line["seq"], line["end"] = line["seq"] * 100, line["end"] * 100
            around = [f"Cell.{w}.Wrapper.forward.{call}" for w in wrappers]
            if rename is not None:
                for field in ("entry", "parent"):
                    line[field] = _renamed(line[field], rename)
            written.append(line)
            if cell == "root" and around:
                line["parent"] = around[-1]
                for depth, name in reversed(list(enumerate(around))):
                    extra = len(around) - depth
                    outer = {**line, "entry": name, "parent": around[depth - 1] if depth else None}
                    outer["seq"], outer["end"] = line["seq"] - extra, line["end"] + extra
                    written.append({k: v for k, v in outer.items() if k not in ("stack", "frames")})
        journal.write_text("".join(json.dumps(line) + "\n" for line in written))
    return run


def _renamed(entry, rename):
    if entry is None:
        return None
    cell, *rest = entry.removeprefix("Cell.").rsplit(".", 3)
    return ".".join(["Cell", rename(cell), *rest])


def below(prefix):
    """Return a function that puts the whole network below a prefix."""
    return lambda cell: prefix if cell == "root" else f"{prefix}.{cell}"


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Return a run under the network's own names."""
    return record(tmp_path_factory.mktemp("plain") / "run")


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("prefix", ["policy", "grpo_model.policy_model.model"])
def test_a_wrapper_around_one_network(plain, tmp_path, prefix, swapped):
    """Cells meet below the prefix; the wrappers are coverage; a note says what was taken off."""
    parts = prefix.split(".")
    wrappers = ["root", *(".".join(parts[:n]) for n in range(1, len(parts)))]
    wrapped = record(tmp_path / "b", below(prefix), wrappers)
    result = compare_runs(wrapped, plain) if swapped else compare_runs(plain, wrapped)
    assert result.verdict.status is Outcome.IDENTICAL
    assert len(result.findings) == len(compare_runs(plain, record(tmp_path / "c")).findings)
    (gap,) = result.verdict.coverage
    assert gap.reason == "cells outside the network that both runs have"
    assert gap.only_in == ("A" if swapped else "B")
    sides = [f"{prefix}.…", "the network itself"]
    a, b = sides if swapped else reversed(sides)
    note = f"{REFERENCE}: the cells of A below {a} are compared with those of B below {b}"
    assert note in result.notes


def test_wrappers_around_both_networks(tmp_path):
    """Both prefixes are taken off; a fault is named as A names the cell."""
    a = record(tmp_path / "a", below("grpo.actor"), ["root", "grpo"])
    fault = Fault("layers.1.mlp", REFERENCE)
    b = record(tmp_path / "b", below("policy"), ["root"], faults=[fault])
    place = compare_runs(a, b).verdict.first_divergence
    assert place.entry == "Cell.grpo.actor.layers.1.mlp.Dense.forward.0"
    assert place.cause is Cause.COMPUTATION
    # One section records the cell in both, whatever each of them calls it.
    assert place.next_step["include"] == [
        r"^grpo\.actor\.layers\.1\.mlp(\.|$)",
        r"^policy\.layers\.1\.mlp(\.|$)",
    ]


def test_a_wrapper_in_one_phase_only(plain, tmp_path):
    """Each phase's network is looked at by itself, without a note where nothing was taken off."""

    def rename(cell):
        return cell

    mixed = record(tmp_path / "b", rename)
    for journal in (mixed / REFERENCE).rglob("records.jsonl"):
        text = journal.read_text().replace('"Cell.', '"Cell.ref.')
        journal.write_text(text.replace("Cell.ref.root.", "Cell.ref."))
    result = compare_runs(plain, mixed)
    assert result.verdict.status is Outcome.IDENTICAL
    assert [note.partition(":")[0] for note in result.notes] == [REFERENCE]


def test_names_that_match_are_left_alone(plain, tmp_path):
    """Cells that one run has beside the common ones do not make any prefix."""

    def rename(cell):
        return cell.replace("layers.1.mlp", "extra.mlp")

    result = compare_runs(plain, record(tmp_path / "b", rename))
    assert result.notes == ()
    alone = {f.entry.split(".Dense")[0] for f in result.findings if not f.status.agrees}
    assert alone == {"Cell.layers.1.mlp", "Cell.extra.mlp"}


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (["layers.0.q", "layers.0.k"], ["layers.1.q", "layers.1.k"]),
        (["layers.q", "layers.k"], ["actor.layers.q", "actor.layers.k", "critic.layers.q"]),
        (["attn.q", "attn.k"], ["p.attn.q", "p.attn.k", "p.cross.q", "p.cross.k"]),
    ],
)
def test_which_prefix_is_taken(a, b):
    """Layers of other numbers are other layers, and the longest common name decides."""
    names = match_names(a, b)
    expected = {"layers.0.q": "", "layers.q": "actor", "attn.q": "p"}[a[0]]
    assert (names.prefix_a, names.prefix_b) == ("", expected)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (["layers.q", "layers.k"], ["actor.layers.q", "actor.layers.k"]),
        (["x.q"], ["y.k"]),
        (["root"], ["policy"]),
        ([], ["a.b"]),
    ],
)
def test_nothing_is_invented(a, b):
    """Without a partner to gain, names stay; two networks that fit alike leave them, too."""
    twice = [*b, *(name.replace("actor", "critic") for name in b)]
    names = match_names(a, twice)
    assert (names.prefix_a, names.prefix_b) == ("", "")


def test_parts_recorded_by_choice_are_no_wrappers(tmp_path):
    """An encoder chosen in one run and a decoder in the other are not held against each other."""

    def rename(cell):
        return cell.replace("layers.0", "encoder").replace("layers.1", "decoder")

    runs = []
    for name, part, chosen in (("a", "layers.0", "encoder"), ("b", "layers.1", "decoder")):
        run = record(tmp_path / name, rename, include=[f"^{part}"])
        rewrite(run / "run.json", {"config.include": [f"^{chosen}"]})
        runs.append(run)
    result = compare_runs(*runs)
    assert result.verdict.status is Outcome.INCOMPARABLE
    assert {gap.reason for gap in result.verdict.coverage} == {"cells left out by include/exclude"}


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def backbone(cell):
    """Rename like another implementation of the same network."""
    return cell.replace("layers.", "backbone.blocks.").replace("mlp", "ffn").replace("embed", "wte")


MAPPINGS = {
    "wildcards": "layers.*.mlp: backbone.blocks.*.ffn\nlayers.*: backbone.blocks.*\nembed: wte\n",
    "regex": r"""
'layers\.(\d+)\.mlp': 'backbone.blocks.\1.ffn'
'layers\.(\d+)': 'backbone.blocks.\1'
'emb.d': 'wte'
""",
    "container": r"""
'(layers)\.(\d+)\.mlp': 'backbone.blocks.\2.ffn'
layers: backbone.blocks
embed: wte
""",
}


@pytest.mark.parametrize("kind", MAPPINGS)
def test_a_mapping_brings_renamed_models_together(plain, tmp_path, kind):
    """Wildcards, regular expressions and containers: the first rule that matches names the cell."""
    mapping = write(tmp_path / "map.yaml", MAPPINGS[kind])
    fault = Fault("layers.1.mlp", REFERENCE)
    b = record(tmp_path / "b", backbone, faults=[fault])
    result = compare_runs(plain, b, mapping=mapping)
    assert not result.verdict.counts["only_in_a"] + result.verdict.counts["only_in_b"]
    place = result.verdict.first_divergence
    assert place.entry == "Cell.layers.1.mlp.Dense.forward.0"
    finding = next(f for f in result.findings if f.status is Status.DIFFERENT)
    assert finding.b.name == "Cell.backbone.blocks.1.ffn.Dense.forward.0.output.0"


def test_a_mapping_below_a_prefix(plain, tmp_path):
    """What a mapping renames may lie below a wrapper as well."""
    mapping = write(tmp_path / "map.yaml", MAPPINGS["regex"])
    b = record(
        tmp_path / "b", lambda c: below("policy")(backbone(c) if c != "root" else c), ["root"]
    )
    result = compare_runs(plain, b, mapping=mapping)
    assert result.verdict.status is Outcome.IDENTICAL
    assert all(f.a.name and f.b.name for f in result.findings)


def test_a_mapping_of_the_root(plain, tmp_path):
    """The network itself can be mapped like any cell."""
    mapping = write(tmp_path / "map.yaml", "root: whole\n")
    b = record(tmp_path / "b", lambda cell: "whole" if cell == "root" else cell)
    assert compare_runs(plain, b, mapping=mapping).verdict.status is Outcome.IDENTICAL


def test_noise_and_a_mapping(plain, tmp_path):
    """Repetitions carry A's names, whatever B's are called."""
    mapping = write(tmp_path / "map.yaml", MAPPINGS["regex"])
    change = {"weights": {"layers.1.mlp": slightly_more}}
    repetition = record(tmp_path / "n", tokens=4, **change)
    b = record(tmp_path / "b", backbone, tokens=4, **change)
    result = compare_runs(plain, b, mapping=mapping, noise=[repetition])
    assert result.verdict.status is Outcome.WITHIN_TOLERANCE
    (gap,) = result.verdict.coverage  # the fourth token is there in the repetition, too
    assert gap.only_in == "B"
    assert "that not every repetition of A has" in gap.reason


def test_two_cells_mapped_onto_one_lose_nothing(plain, tmp_path):
    """The cell that finds its partner taken is in A only."""
    mapping = write(tmp_path / "map.yaml", r"'layers\.\d+\.mlp': layers.0.mlp")
    result = compare_runs(plain, record(tmp_path / "b"), mapping=mapping)
    assert result.verdict.status is Outcome.DIVERGED
    whole = compare_runs(plain, tmp_path / "b")
    for side in "ab":
        found = sorted((f.phase, getattr(f, side).name or "") for f in result.findings)
        wanted = sorted((f.phase, getattr(f, side).name) for f in whole.findings)
        assert [place for place in found if place[1]] == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("{}", "holds no name pattern"),
        ("- a\n- b\n", "expected a mapping"),
        ("just text", "expected a mapping"),
        ("a: 3", "is no mapping of cells"),
        ("1: b", "expected a name pattern and a name"),
        ("a:", "is no mapping of cells"),
        ("a: ''", "expected a name pattern and a name"),
        ("a: [b]", "is no mapping of cells"),
        ("'a(': b", "is not a pair of name patterns"),
        ("'*a': b", "is not a pair of name patterns"),
        (r"'a': 'b.\1'", "there is no group 1"),
        (r"'(a)': 'b.\2'", "is not a pair of name patterns"),
        (r"'a': 'b\g<x>'", "is not a pair of name patterns"),
        ("layers.*: blocks.*.*", "is not a pair of name patterns"),
        (r"'(?P<inside>a)': b", "is not a pair of name patterns"),
        ("a: [", "is not valid YAML"),
        ("\x00", "is not valid YAML"),
    ],
)
def test_a_mapping_that_is_wrong_is_one_clear_error(tmp_path, text, message, capsys):
    """The message names the file and what is wrong; the command line ends with 2."""
    path = write(tmp_path / "map.yaml", text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_cells(path)
    assert str(path) in str(caught.value)
    code = main(["compare", str(tmp_path), "x", "--mapping", str(path), "-o", str(tmp_path / "o")])
    assert code == 2
    assert capsys.readouterr().err.count("\n") == str(caught.value).count("\n") + 1


def test_a_mapping_that_is_missing_or_no_text(tmp_path):
    """A file that is not there, a directory, and bytes that are no text."""
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "none.yaml", tmp_path, tmp_path / "binary.yaml"):
        with pytest.raises(ConfigError, match=str(path)):
            load_cells(path)


def test_a_pattern_that_matches_nothing(plain, tmp_path, capsys):
    """It is named, because a typing error would silently compare nothing."""
    b = record(tmp_path / "b")
    mapping = write(tmp_path / "map.yaml", "layers: layers\nlayer.0: x\n")
    with pytest.raises(UsageError, match=r"'layer\.0' matches no cell of A"):
        compare_runs(plain, b, mapping=mapping)
    out = ["-o", str(tmp_path / "o")]
    assert main(["compare", str(plain), str(b), "--mapping", str(mapping), *out]) == 2
    assert "matches no cell of A" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("source", "target", "cell", "name"),
    [
        ("a.*", "b.*", "a.x", "b.x"),
        ("a.*", "b.*", "a.x.y", "b.x.y"),
        ("a.*.c", "*.c", "a.x.c.d", "x.c.d"),
        ("a.*", "b.*", "axx", None),
        ("a+b.*", "c.*", "a+b.x", "c.x"),
        (r"a.*.\*", r"b.\*.*", "a.x.*", "b.*.x"),  # a star of a name has a backslash before it
        (r"a\.\*", r"\*", "a.*.b", "*.b"),
        ("a.*", "b", "a.x.y", "b"),  # without a * in the target: a regular expression
        (r"a|b", "c", "b.x", "c.x"),
        (r"a\.(\d+)", r"b.\1", "a.12.w", "b.12.w"),
        (r"a\.(\d+)", r"b.\g<1>0", "a.1", "b.10"),
        ("lay", "x", "layers", None),
        ("a", "b.c", "a", "b.c"),
    ],
)
def test_how_a_rule_renames(source, target, cell, name):
    """Patterns match whole names, or whole containers."""
    assert NameRule(source, target).rename(cell) == name


def test_of_ten_thousand_lines_each_name_is_looked_up_once(tmp_path, monkeypatch):
    """Whatever lines there are: names, names with `*`, patterns, and cells that are several."""
    renamed = []

    def rename(own, name, rename=Renaming.rename):
        renamed.append(name)
        return rename(own, name)

    monkeypatch.setattr(Renaming, "rename", rename)
    leaf = Leaf("mindspore.Tensor", "Float32", (4, 4))
    lines, a, b = [], {}, {}
    for n in range(10_000):
        wildcard, pattern = f"'a*.{n}.w': 'b*.{n}.x'", rf"(\w)1\.{n}\.w: b1.{n}.x"
        lines.append((f"a1.{n}.w: b1.{n}.x", wildcard, pattern)[n % 3])
        for side, name in ((a, f"a1.{n}.w.weight"), (b, f"b1.{n}.x.weight")):
            side[name] = Record(name, "parameters", name, leaf)
    lines += [f"a1.{n}.q: [b1.{n}.l, b1.{n}.r]" for n in range(1000)]
    mapping = load_cells(write(tmp_path / "map.yaml", "\n".join(lines)))
    pairs, _ = pair_parameters(a, b, mapping)
    assert [pair for pair in pairs if len(pair.records) < 2] == []
    assert mapping.names.unused(["a1.7.w"])[:8] == [*mapping.names[:7], mapping.names[8]]
    assert len(mapping.fused.unused(["a1.7.q"])) == 999
    check_mapping(mapping, [*a, *(f"a1.{n}.q.weight" for n in range(1000))])
    assert len(renamed) < 100_000
