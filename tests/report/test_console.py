"""The answer on the console: one screen that names the place, the cause and the next step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import yaml
from helpers.divergences import first_divergence
from helpers.runs import Fault, Recording, record_data, record_training

from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.comparison.preflight.preflight import remark
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.findings import (
    Cause,
    Comparison,
    CoverageGap,
    Difference,
    Outcome,
    Preflight,
    RuleUse,
    Spread,
    Status,
    Verdict,
    Weights,
)
from mindrlhf_msprobe.report import comparison as comparison_report
from mindrlhf_msprobe.report import summary
from mindrlhf_msprobe.report.answer import Fact
from mindrlhf_msprobe.report.comparison import head_of, render
from mindrlhf_msprobe.report.messages import paragraph, say, text_of
from mindrlhf_msprobe.report.preflight import merged, preflight_lines


def said(*texts):
    """Return messages of these words."""
    return tuple(Message("text", {"text": text}) for text in texts)


def compare(tmp_path, *faults, tolerance=None, **settings):
    a = record_training(tmp_path / "a", **settings)
    b = record_training(tmp_path / "b", faults=faults, **settings)
    return compare_runs(a, b, tolerance=tolerance)


def test_a_divergence_is_named_with_place_cause_and_next_step(tmp_path):
    """Where it is, of which kind and what to do come first; then what agreed before it."""
    fault = Fault("layers.1.mlp", "reference_compute_log_prob", step=1)
    lines = render(compare(tmp_path, fault)).splitlines()
    assert lines[0] == "DIVERGED at step 1, reference_compute_log_prob, rank 0"
    assert lines[1].strip() == "Cell.layers.1.mlp.Dense.forward.0"
    assert "cause: computation" in lines[2]
    heads = [line for line in lines[3:] if not line.startswith(" ")]
    assert heads[0].startswith("Look closer: ")
    assert heads[1].startswith("Before it: ")
    assert len(lines) < 20


@pytest.mark.parametrize(
    ("key", "cause", "said"),
    [
        ("prompts", "input", "What to do: compare the data that both runs load"),
        ("advantages", "data", "What to do: compare the trainer's code that computes advantages"),
    ],
)
def test_what_to_do_where_no_recording_tells_more(tmp_path, key, cause, said):
    lines = render(compare(tmp_path, Fault(key))).splitlines()
    assert f"cause: {cause}" in lines[2]
    assert lines[3].strip().startswith(said)


def test_the_next_step_can_be_pasted_into_a_yaml_file(tmp_path):
    """The section it prints is YAML that the configuration accepts."""
    fault = Fault("layers.1.mlp", "reference_compute_log_prob", step=1)
    text = render(compare(tmp_path, fault))
    (line,) = [line for line in text.splitlines() if "msprobe_config:" in line]
    section = yaml.safe_load(line)["msprobe_config"]
    assert ProbeConfig(**section).records_cell("layers.1.mlp")


def test_the_size_of_the_difference_is_shown_with_tensors(tmp_path):
    """With elements at hand the errors are shown."""
    text = render(compare(tmp_path, Fault("rewards")))
    assert "max abs 0.01" in text
    assert "cause: data" in text


def test_equal_runs_are_said_to_agree_bit_for_bit(tmp_path):
    """Identical runs: one sentence with how much was compared."""
    text = render(compare(tmp_path), seconds=1.25)
    assert text.startswith("IDENTICAL: 378 records of 2 steps, 1 rank, 6 phases agree bit for bit.")
    assert "in 1.2 s" in text


def test_what_was_not_compared_is_listed(tmp_path):
    """Coverage gaps and what cannot be read each have a line."""
    a = record_training(tmp_path / "a")
    b = record_training(tmp_path / "b", reference_dump=False)
    (b / "actor_update/step0/rank0/records.jsonl").write_text("damaged\n")
    text = render(compare_runs(a, b))
    assert "Not compared: 48 records only in A — reference_compute_log_prob not recorded" in text
    assert "Incomplete: B: " in text


@pytest.mark.parametrize("harmful", ["\x1b[2J", "\r", "\x00", "\udc80", "\u202e"])
def test_names_from_a_dump_cannot_take_over_the_terminal(tmp_path, harmful):
    """Control characters in names are shown as escapes, and all of it can be encoded."""
    for name in ("a", "b"):
        recording = Recording(tmp_path / name)
        with recording.phase("actor_update"):
            recording.call(f"x{harmful}", "Net", lambda x, n=name: x + (n == "b"), np.ones(2))
        recording.end_step()
        recording.close()
    text = render(compare_runs(tmp_path / "a", tmp_path / "b", output_path=tmp_path / "out"))
    assert harmful not in text
    assert "DIVERGED" in text
    text.encode("utf-8")


def parted(**values) -> Comparison:
    """Return a comparison that found a divergence in actor_update at step 2."""
    first = first_divergence()
    layers = tuple(Spread(f"layers.{n}", 1, 2, 1e-3 * n, None, 4.0 * n) for n in range(1, 12))
    spread = (
        Spread("actor_update", 9, 20, 1e-3, 1e-2, 44.0, layers),
        *(Spread(f"key{n}", 1, 1, 1e-4, None, 12.34) for n in range(10)),
    )
    counts = {str(status): 1 for status in Status}
    gaps = tuple(CoverageGap(f"phase{n} not recorded", "A", 7) for n in range(6))
    defaults = {
        "verdict": Verdict(Outcome.DIVERGED, counts, first, coverage=gaps, spread=spread),
        "findings": (),
        "incomplete": said(*(f"B: rank {n} lost 3 records" for n in range(9))),
        "remarks": said("the prefix model. was taken off A"),
        "output_path": "out",
        "tables": ("summary.xlsx", "loss.xlsx", "compare_result_actor_update.xlsx"),
    }
    return Comparison("a", "b", **{**defaults, **values})


def test_what_agreed_before_is_counted_in_phases_and_steps():
    """Whole phases and earlier steps that agree, and the last record that does."""
    assert (
        "Before it: 3 phases and 214 records of step 2 agree, and all of steps 0 to 1. "
        "The last: Cell.head.Dense.forward.0.input.0" in render(parted()).splitlines()
    )


@pytest.mark.parametrize(
    ("steps", "step", "said"),
    [
        (0, 2, "agree."),
        (1, 1, "agree, and all of step 0."),
        (1, 2, "agree, and all of 1 earlier step."),
        (7, 7, "agree, and all of steps 0 to 6."),
    ],
)
def test_earlier_steps_are_named_only_where_all_were_compared(steps, step, said):
    """Steps 0 to N are said to agree only if each of them was compared."""
    first = replace(parted().verdict.first_divergence, step=step, agreed_steps=steps)
    assert say("console.before", first).endswith(said)


def test_where_the_difference_went_is_shown_with_its_growth():
    """The layers of the origin's phase, then the phases and keys after it, eight of each."""
    inside, after = (line for line in render(parted()).splitlines() if line.startswith("After it"))
    assert inside.startswith(
        "After it, in actor_update (max abs error; × relative distance, the first divergence "
        "being ×1): layers.1 1.0e-03 ×4 → layers.2 2.0e-03 ×8 →"
    )
    assert inside.endswith("… 3 more")
    assert after.startswith("After it, in step 2: key0 1.0e-04 ×12 → key1")
    assert after.endswith("key7 1.0e-04 ×12 → … 2 more")


def test_what_differs_before_any_tensor_stands_behind_the_headline_and_the_cause():
    """Weights, then seeds, then versions, six lines at most; a role is named once."""
    differences = [
        *(Difference("configurations", f"lr{n}", "1", "2") for n in range(6)),
        Difference("versions", "mindspore", "2.6", "2.7"),
        Difference("seeds", "seed", "1", None),
        Difference("initial_weights", "actor", "one", "another"),
    ]
    weights = (
        Weights("actor", 120, different=("w1", "w2", "w3", "w4"), only_in_b=("w5",)),
        Weights("critic", 10),
    )
    comparison = parted(preflight=Preflight(tuple(differences), weights))
    lines = render(comparison).splitlines()
    assert lines[0].startswith("DIVERGED at step 2")
    assert lines[2].startswith("  cause: ")
    begin = lines.index("Before any tensor, these settings differ:")
    assert lines[begin : begin + 8] == [
        "Before any tensor, these settings differ:",
        "  initial weights of actor: 4 of 120 parameters differ, 1 only in B (w1, w2, w3, …)",
        "  seeds: seed: 1 in A, nothing in B",
        "  versions: mindspore: 2.6 in A, 2.7 in B",
        "  configurations: lr0: 1 in A, 2 in B",
        "  configurations: lr1: 1 in A, 2 in B",
        "  configurations: lr2: 1 in A, 2 in B",
        "  … 3 more in summary.xlsx",
    ]


def test_every_list_is_capped():
    """However much there is to say, it stays one screen that points to the summary."""
    unknown = ("the initial weights of reference: not recorded in B",)
    rules = tuple(
        RuleUse((Message("text", {"text": f"rtol 0.00{n} (rule {n})"}),), 100, 20)
        for n in range(1, 4)
    )
    preflight = Preflight(not_compared=said(*unknown))
    lines = render(parted(preflight=preflight, rules=rules)).splitlines()
    assert len(lines) <= 26
    assert "Not compared: … 3 more in summary.xlsx" in lines
    assert "Incomplete: … 5 more in summary.xlsx" in lines
    assert "Note: the prefix model. was taken off A" in lines
    (tolerance,) = (line for line in lines if line.startswith("Tolerance:"))
    assert tolerance == (
        "Tolerance: rtol 0.001 (rule 1): 100 records, 20 agree only by it; "
        "rtol 0.002 (rule 2): 100 records, 20 agree only by it; … 1 more in summary.xlsx"
    )


def test_a_new_fact_is_shown_by_all_that_show_an_answer(monkeypatch):
    """It is listed once; console, page and summary.xlsx need to know nothing of it."""
    known = comparison_report.facts_of

    def facts_of(comparison, **options):
        fact = Fact("temperature", "It was warm.", ("verdict", "temperature", 31))
        return [*known(comparison, **options), fact]

    for module in (comparison_report, summary):
        monkeypatch.setattr(module, "facts_of", facts_of)
    found = parted()
    assert "It was warm." in render(found).splitlines()
    assert {"text": "It was warm.", "link": None} in head_of(found).to_json()["lines"]
    verdict = summary.summary_of(found)[0]
    assert ("verdict", "temperature", 31) in [tuple(row[:3]) for _, row in verdict.rows()]


def test_the_summary_is_the_table_that_is_named():
    """Of all tables the one to open first is named with its directory."""
    lines = render(parted()).splitlines()
    assert "Tables: out/summary.xlsx and 2 more" in lines
    assert "Machine-readable: out/verdict.json" in lines


def diverged(**values) -> Comparison:
    """Return `parted` with another first divergence."""
    whole = parted()
    first = replace(whole.verdict.first_divergence, **values)
    return replace(whole, verdict=replace(whole.verdict, first_divergence=first))


def test_errors_that_are_none_are_not_shown():
    """Where no finite element differs, "max abs 0" would say that nothing does."""
    lines = render(diverged(cause=Cause.NON_FINITE, max_abs_err=0.0, max_rel_err=0.0)).splitlines()
    assert not any("max abs 0" in line for line in lines)
    assert any("max abs 0.001, max rel 0.01" in line for line in render(parted()).splitlines())
    spread = (Spread("loss", 1, 1, 0.0, 0.0),)
    verdict = replace(parted().verdict, spread=spread)
    assert "After it, in step 2: loss" in render(parted(verdict=verdict)).splitlines()


@pytest.mark.parametrize(
    ("records", "phases", "steps", "said"),
    [
        (1, 0, 0, "1 record of step 2 agrees."),
        (1, 1, 2, "1 phase and 1 record of step 2 agree, and all of steps 0 to 1."),
        (0, 0, 2, "all of steps 0 to 1 agree."),
        (0, 0, 1, "all of 1 earlier step agrees."),
        (0, 0, 0, ""),
    ],
)
def test_what_agreed_before_is_said_in_whole_sentences(records, phases, steps, said):
    """One record agrees, two agree, and of nothing there is no line."""
    comparison = diverged(agreed_before=records, agreed_phases=phases, agreed_steps=steps)
    assert say("console.before", comparison.verdict.first_divergence) == said
    assert ("Before it: " in render(comparison)) == bool(said)


def test_one_record_is_not_one_records(tmp_path):
    """In the headline, in the last line, and in what was not compared."""
    a, b = (record_data(tmp_path / name, [("loss", 1.0)]) for name in ("a", "b"))
    result = compare_runs(a, b)
    text = render(replace(result, verdict=replace(result.verdict, coverage=gaps(1))))
    assert "1 record of 1 step, 1 rank" in text
    assert " agrees bit for bit." in text
    assert "· 1 record:" in text
    assert "Not compared: 1 record only in A" in text
    assert "1 records" not in text


def gaps(records):
    return (CoverageGap("critic_update not recorded", "A", records),)


def after(tmp_path, a, b):
    """Save key data in one step of two runs and return what the console says comes after."""
    runs = (record_data(tmp_path / name, of.items()) for name, of in (("a", a), ("b", b)))
    lines = render(compare_runs(*runs)).splitlines()
    (line,) = (line for line in lines if line.startswith("After it"))
    return line


def test_of_texts_no_numbers_are_shown(tmp_path):
    """How far the bytes of two texts are apart says nothing."""
    line = after(
        tmp_path,
        {"values": 1.0, "answer": "seven", "loss": 1.0},
        {"values": 2.0, "answer": "eight", "loss": 5.0},
    )
    assert line.endswith("being ×1): answer → loss 4.0e+00 ×1.6")


def test_a_text_is_no_measure_of_what_follows(tmp_path):
    """Where a text is the first divergence, no distance is a multiple of its bytes' distance."""
    line = after(
        tmp_path, {"responses": "seven", "loss": 1.0}, {"responses": "eight", "loss": 1.001}
    )
    assert line == "After it, in step 0 (max abs error): loss 1.0e-03"


def test_long_values_are_cut_around_their_first_difference():
    """Two paths that share a long prefix are told apart; what follows is cut as well."""
    prefix, rest = "/home/somebody/checkpoints/experiments/", "/weights" * 9
    pairs = [(f"{prefix}one{rest}", f"{prefix}two{rest}"), (prefix + "x" * 9, prefix + "x" * 8)]
    found = tuple(Difference("configurations", f"path{i}", *pair) for i, pair in enumerate(pairs))
    lines = render(parted(preflight=Preflight(found))).splitlines()
    one, two = (line for line in lines if line.startswith("  configurations: "))
    a, b = one.removeprefix("  configurations: path0: ").removesuffix(" in B").split(" in A, ")
    assert (a.replace("one", "two"), a[0], a[-1]) == (b, "…", "…")
    assert "one" in a
    assert len(a) <= 42
    a, b = two.removeprefix("  configurations: path1: ").removesuffix(" in B").split(" in A, ")
    assert a != b
    assert a.endswith("/" + "x" * 9)
    assert b.endswith("/" + "x" * 8)


def test_lines_that_share_their_reason_stand_in_one():
    """numpy's and Python's generators, two roles; what each run lacks stays apart."""
    roles = ("actor", "critic", "reference")
    unread = [message("preflight.weights_unreadable", role=role, side="A") for role in roles]
    found = merged([*unread[:1], *said("x"), *unread[1:]])
    assert [text_of(one, "en") for one in found] == [
        "initial weights of actor / critic / reference: those of run A cannot be read",
        "x",
    ]
    sides = [message("preflight.whose_rank", side=side) for side in "AB"]
    assert merged(sides) == sides
    preflight = Preflight(not_compared=tuple(unread[:2]))
    verdict = replace(parted().verdict, coverage=())
    text = render(parted(preflight=preflight, verdict=verdict))
    assert text.count("Not compared: initial weights of ") == 1


def test_settings_that_only_say_where_files_lie_come_last():
    """Each run has directories of its own: they must not hide the setting that matters."""
    paths = [Difference("configurations", f"actor.path{n}", f"/a/{n}", f"/b/{n}") for n in range(9)]
    mode = Difference("device", "mode", "PyNative", "graph")
    _, lines = preflight_lines(Preflight(differences=(*paths, mode)))
    assert lines[0] == "device: mode: PyNative in A, graph in B"
    text = paragraph(remark(Preflight(differences=(*paths, mode)), None), "en")
    assert "the first: device mode" in text
