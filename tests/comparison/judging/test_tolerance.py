"""Tolerance rules: which record is judged by which, and what a wrong file is told."""

from __future__ import annotations

import pytest
from helpers.runs import Fault, record_training

from mindrlhf_msprobe import Tolerance, compare_runs
from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.comparison.judging.tolerance import Rule, Tolerances, load_rules, tolerances
from mindrlhf_msprobe.errors import ConfigError, UsageError
from mindrlhf_msprobe.findings import Outcome, Status

UPDATE = "critic_update"


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Return two runs whose critic differs a little from its second mlp on, with tensors."""
    root = tmp_path_factory.mktemp("pair")
    fault = Fault("layers.1.mlp", UPDATE, change=lambda x: x * 1.0001)
    settings = {"steps": 1, "task": "tensor"}
    return [
        record_training(root / "a", **settings),
        record_training(root / "b", faults=[fault], **settings),
    ]


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_the_first_rule_that_matches_counts(pair, tmp_path):
    """A strict rule before a loose one keeps its records strict; the rest has the default."""
    rules = write(
        tmp_path / "rules.yaml",
        r"""
'layers\.1\.mlp.*output': {rtol: 1e-3}
'head|layers': {rtol: 0, atol: 0}
'Network': {rtol: 1e-2, atol: 1e-6}
""",
    )
    result = compare_runs(*pair, tolerance=Tolerances(Tolerance(0.5), load_rules(rules)))
    by_name = {f.record: f for f in result.findings if f.phase == UPDATE}
    mlp = by_name["Cell.layers.1.mlp.Dense.forward.0.output.0"]
    assert mlp.status is Status.WITHIN_TOLERANCE
    assert mlp.tolerance == r"rtol 0.001, atol 0 (rule 'layers\.1\.mlp.*output')"
    head = by_name["Cell.head.Dense.forward.0.output.0"]
    assert head.status is Status.DIFFERENT
    assert head.tolerance == "bitwise (rule 'head|layers')"
    assert by_name["Cell.root.Network.forward.0.output.0"].status is Status.WITHIN_TOLERANCE
    loss = next(f for f in result.findings if f.key == "value_loss")
    assert (loss.status, loss.tolerance) == (Status.WITHIN_TOLERANCE, "rtol 0.5, atol 0")


def test_rules_tell_how_often_they_decided(pair, tmp_path):
    """`Comparison.rules` sums up to all records with a tolerance, and says how many passed."""
    rules = write(tmp_path / "r.yaml", "Cell: {rtol: 1e-2}\nvalue_loss: {rtol: 1}\n")
    result = compare_runs(*pair, tolerance=rules)
    assert result.verdict.status is Outcome.WITHIN_TOLERANCE
    use = {r.rule: (r.records, r.passed) for r in result.rules}
    cells = [f for f in result.findings if f.entry]
    loose = [f for f in cells if f.status is Status.WITHIN_TOLERANCE]
    assert use == {
        "rtol 0.01, atol 0 (rule 'Cell')": (len(cells), len(loose)),
        "rtol 1, atol 0 (rule 'value_loss')": (1, 1),
    }
    assert result.to_json()["tolerance"][0]["records"] == len(cells)
    assert {f.tolerance for f in result.findings if f.key not in (None, "value_loss")} == {""}


def test_a_bitwise_comparison_has_no_rules(pair):
    """Without a tolerance nothing is listed."""
    result = compare_runs(*pair)
    assert result.rules == ()
    assert {f.tolerance for f in result.findings} == {""}


@pytest.mark.parametrize(
    "text", ["x: {rtol: 1e-3}", "x: {rtol: 0.001}", "x: {rtol: '1e-3'}", "x: {rtol: .1e-2}"]
)
def test_numbers_yaml_reads_as_text(tmp_path, text):
    """`1e-3` without a dot is text to YAML, and a number to us."""
    assert load_rules(write(tmp_path / "r.yaml", text)) == (Rule("x", Tolerance(1e-3)),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("{}", "holds no rule"),
        ("[1]", "expected a mapping"),
        ("x: 1e-3", "expected a pattern and its tolerance"),
        ("x: {}", "expected a pattern and its tolerance"),
        ("x:", "expected a pattern and its tolerance"),
        ("3: {rtol: 1}", "expected a pattern and its tolerance"),
        ("x: {rtoll: 1}", "Did you mean 'rtol'"),
        ("x: {1: 1}", "has the key 1"),
        ("'x(': {rtol: 1}", "is not a regular expression"),
        ("x: {rtol: -1}", "expected a number, 0 or larger"),
        ("x: {rtol: .inf}", "expected a number, 0 or larger"),
        ("x: {rtol: .nan}", "expected a number, 0 or larger"),
        ("x: {rtol: nan}", "expected a number, 0 or larger"),
        ("x: {rtol: loose}", "expected a number, 0 or larger"),
        ("x: {rtol: yes}", "expected a number, 0 or larger"),
        ("x: {rtol: }", "expected a number, 0 or larger"),
        ("x: {rtol: [1]}", "expected a number, 0 or larger"),
        ("x: {atol: 2024-01-01}", "expected a number, 0 or larger"),
        ("x: {rtol: 1", "is not valid YAML"),
        ("x: {rtol: 1}\ny: {}\nx: {rtol: 2}", "line 3: .x. is repeated"),
    ],
)
def test_a_file_that_is_wrong_is_one_clear_error(tmp_path, text, message, capsys):
    """The message names the file and what is wrong; the command line ends with 2."""
    path = write(tmp_path / "r.yaml", text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_rules(path)
    assert str(path) in str(caught.value)
    assert main(["compare", "x", "y", "--tolerance", str(path), "-o", str(tmp_path / "o")]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_missing_file(tmp_path):
    """One clear error."""
    with pytest.raises(ConfigError, match=r"there is no such file\. .* a YAML file of rules"):
        tolerances(str(tmp_path / "none.yaml"))


@pytest.mark.parametrize("wrong", [1e-3, True, {"rtol": 1}, ["x"]])
def test_what_is_no_tolerance(pair, wrong):
    """A bare number is no Tolerance, and the error says what is."""
    with pytest.raises(UsageError, match=r"expected Tolerance\(rtol="):
        compare_runs(*pair, tolerance=wrong)


def test_a_rule_that_matches_nothing(pair, tmp_path, capsys):
    """It is an error before any tensor is read: one that cannot be read is not even noticed."""
    rules = write(tmp_path / "r.yaml", "layers: {rtol: 1}\nlm_haed: {rtol: 1}\n")
    with pytest.raises(UsageError, match="'lm_haed' matches no record of either run"):
        compare_runs(*pair, tolerance=rules)
    told = []
    with pytest.raises(UsageError):
        compare_runs(*pair, tolerance=rules, progress=lambda *n: told.append(n))
    assert told == []
    arguments = ["compare", *map(str, pair), "--tolerance", str(rules), "-o", str(tmp_path / "o")]
    assert main(arguments) == 2
    assert "lm_haed" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    "pattern", ["^rewards$", "^prompts", r"parameters\.weight$", "Dense.*input", "critic|head"]
)
def test_what_a_pattern_is_searched_in(pair, tmp_path, pattern):
    """Rules reach key data, parameters and inputs by their names."""
    rules = write(tmp_path / "r.yaml", f"'{pattern}': {{atol: 1e-9}}")
    (use,) = compare_runs(*pair, tolerance=rules).rules
    assert use.records > 0


def test_rules_on_the_command_line_hold_beside_rtol(pair, tmp_path):
    """--rtol is the default for what no rule matches."""
    rules = write(tmp_path / "r.yaml", "layers: {rtol: 5e-2}")
    arguments = ["compare", *map(str, pair), "--tolerance", str(rules), "-o", str(tmp_path / "o")]
    assert main(arguments) == 1
    assert main([*arguments, "--rtol", "1e-2"]) == 0
