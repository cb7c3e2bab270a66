"""What a page holds of runs, against the comparison and the journals it is made of."""

from __future__ import annotations

import base64
import json
import shutil
import zlib
from collections import defaultdict

import numpy as np
import pytest
from helpers.health_runs import HealthRun, tensor
from helpers.health_runs import a_nan as a_nan_leaf
from helpers.odd_runs import NO_LAYERS
from helpers.pages import Page
from helpers.runs import Fault, a_nan, record_training

from mindrlhf_msprobe import check_run, compare_runs, open_run
from mindrlhf_msprobe.findings import Status
from mindrlhf_msprobe.report.page.data import NOT_FINITE, UNMEASURED, ZERO
from mindrlhf_msprobe.report.page.page import Shown, write_page
from mindrlhf_msprobe.storage.arrays.atomic import number_to_json
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import direction_of
from mindrlhf_msprobe.storage.step_lines import time_lines
from mindrlhf_msprobe.trends.rollout_correction import METRICS

pytest.importorskip("bokeh")
pytest.importorskip("jinja2")


def value(code: int) -> float:
    return 2.0 ** ((code - 16384) / 256)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("page")
    a = record_training(root / "a", steps=3, ranks=(0, 1))
    faults = [Fault("layers.1.mlp", "reference_compute_log_prob", step=1)]
    b = record_training(root / "b", steps=3, ranks=(0, 1), faults=faults)
    return a, b


@pytest.fixture(scope="module")
def pair(runs, tmp_path_factory):
    comparison = compare_runs(*runs)
    file = tmp_path_factory.mktemp("page") / "page.html"
    write_page(Shown(tuple(map(open_run, runs)), comparison, ()), file)
    return comparison, Page(file)


def shown_page(folder, runs, comparison=None, checks=()):
    """Write the page of runs, opened or by their paths, and read it."""
    opened = (run if isinstance(run, Run) else open_run(run) for run in runs)
    write_page(Shown(tuple(opened), comparison, checks), folder / "page.html")
    return Page(folder / "page.html")


def test_the_planted_place_is_on_top(pair):
    """Place, cause and sentence are those of the verdict, in both languages."""
    comparison, page = pair
    first, answer = comparison.verdict.first_divergence, page.head["answer"]
    assert answer["place"]["record"] == first.record
    assert answer["cause"] == first.cause.value
    assert first.explanation in answer["sentence"]


def test_maps_hold_the_worst_of_what_each_call_returned(pair):
    """Status and relative distance of every call, computed from the findings one by one."""
    comparison, page = pair
    statuses, distances = defaultdict(list), defaultdict(list)
    for finding in comparison.findings:
        if finding.entry is None or finding.io not in ("output", "parameters_grad"):
            continue
        at = finding.phase, finding.entry, finding.step, finding.rank
        statuses[at].append(finding.status)
        distances[at].append(0.0 if finding.status is Status.IDENTICAL else finding.distance)
    status, distance = page.heat("status"), page.heat("distance")
    assert statuses
    for at, found in statuses.items():
        assert (status[at] == 0) == all(one is Status.IDENTICAL for one in found), at
        worst = max(distances[at])
        assert (
            distance[at] == 1
            if worst == 0
            else value(distance[at]) == pytest.approx(worst, rel=0.002)
        )


def leaf(norm=1.0, print_="xxh3_128:a", **how):
    return tensor(norm=norm, fingerprint=print_, **how)


OTHER = "xxh3_128:b"
PARTED = {
    "the outermost backward returns nothing": (
        *("backward", {"output": Leaf("NoneType")}),
        *({"given": leaf()}, {"given": leaf(1.01, OTHER)}, 0.01 / 1.01),
    ),
    "a weight that the output does not depend on": (
        *("forward", {"output": leaf(), "given": leaf()}),
        *({"parameters": {"weight": leaf()}}, {"parameters": {"weight": leaf(1.5, OTHER)}}, 1 / 3),
    ),
    "rows in another order": (
        *("forward", {"given": leaf()}, {"output": leaf()}, {"output": leaf(1.0, OTHER)}, "≠"),
    ),
    "a gradient in another order, behind which nothing comes": (
        *("backward", {"output": Leaf("NoneType")}),
        *({"given": leaf()}, {"given": leaf(1.0, OTHER)}, "≠"),
    ),
    "NaN": (*("forward", {"given": leaf()}, {"output": leaf()}), {"output": a_nan_leaf()}, "NaN"),
}


@pytest.mark.parametrize("case", [*PARTED])
def test_the_first_divergence_is_neither_zero_nor_empty(tmp_path, case):
    """Its cell of the map has the distance of what differs there, or says that it differs."""
    direction, alike, *sides, wanted = PARTED[case]
    runs = []
    for side, given in zip("ab", sides):
        run = HealthRun(tmp_path / side)
        with run.phase("actor_update"):
            run.call("before", leaf(), leaf())
            run.call("head", direction=direction, **alike, **given)
            run.call("behind", leaf(), leaf())
        run.end_step()
        runs.append(run.close())
    comparison = compare_runs(*runs)
    first = comparison.verdict.first_divergence
    assert first.entry == f"Cell.head.Dense.{direction}.0"
    page = shown_page(tmp_path, runs, comparison)
    at = first.phase, first.entry, 0, 0
    distance, status = page.heat("distance"), page.heat("status")
    if isinstance(wanted, float):
        assert value(distance[at]) == pytest.approx(wanted, rel=0.002)
    else:
        assert distance[at] == {"NaN": NOT_FINITE, "≠": UNMEASURED}[wanted]
    assert status[at] in (2, 3)
    assert {distance[other] for other in distance if other != at} == {ZERO}


def test_growth_is_infinite_where_the_difference_arose(pair):
    """Its inputs agree and its output does not; before it nothing grew."""
    comparison, page = pair
    first = comparison.verdict.first_divergence
    growth = page.heat("growth")
    at = first.phase, first.entry, first.step, first.rank
    assert growth[at] == 2
    assert all(code == 0 for (_, _, step, _), code in growth.items() if step < first.step)


def test_records_have_the_numbers_of_the_journal(pair, runs):
    """Every statistic and fingerprint of both runs, at every place that is in full."""
    _, page = pair
    opened = [*map(open_run, runs)]
    checked = 0
    for step, rank in sorted(opened[0].places):
        shown = page.records(step, rank)
        for side, run in zip("ab", opened):
            for entry in run.entries(None, step, rank):
                for record in entry.records:
                    found = shown[entry.phase, record.name][side]
                    leaf = record.leaf
                    for name in ("max", "min", "mean", "norm"):
                        wanted = number_to_json(getattr(leaf, name))
                        assert found.get(name) == wanted, (record.name, name)
                    assert found.get("fp") == leaf.fingerprint
                    assert found.get("shape") == (None if leaf.shape is None else [*leaf.shape])
                    checked += 1
    assert checked > 100


def test_the_strip_counts_what_was_compared(pair):
    """Phases and keys of a place in causal order; their pairs are those of the comparison."""
    comparison, page = pair
    first = comparison.verdict.first_divergence
    items = page.json("strip")["places"][f"{first.step}-{first.rank}"]
    of_place = [f for f in comparison.findings if (f.step, f.rank) == (first.step, first.rank)]
    assert sum(item[5] for item in items) == len(of_place)
    missing = (Status.ONLY_IN_A, Status.ONLY_IN_B, Status.UNREADABLE)
    unlike = [f for f in of_place if not f.status.agrees and f.status not in missing]
    assert sum(item[6] for item in items) == len(unlike) > 0
    flagged = [item for item in items if "first" in item[9]]
    assert [page.head["phases"][item[1]] for item in flagged] == [first.phase]
    order = [page.head["phases"][item[1]] for item in items if item[0] == "phase"]
    assert order.index("actor_compute_log_prob") < order.index("actor_update")


PHASES = [
    *("actor_generate_sequences", "actor_compute_log_prob", "reference_compute_log_prob"),
    *("critic_compute_values", "actor_update", "critic_update"),
]


def timed(root, **settings):
    """Return a run whose phases took 0.5 s each, one behind the other, with keys between them."""
    run = record_training(root, **settings)
    phases = [
        {"phase": phase, "opening": 0, "recorded": False, "began": 1.0 * number, "seconds": 0.5}
        for number, phase in enumerate(PHASES)
    ]
    saves = {"prompts": 0.6, "responses": 0.7, "old_log_prob": 1.6}
    key_data = [{"key": key, "micro_step": 0, "at": at} for key, at in saves.items()]
    for step in open_run(run).steps:
        times = {"step": step, "rank": 0, "ended": 1e9, "seconds": 6.0}
        time_lines(run, 0).append([{**times, "phases": phases, "key_data": key_data}])
    return run


@pytest.mark.parametrize("sides", [1, 2])
def test_phases_of_which_only_the_times_are_known_stand_in_the_step(tmp_path, sides):
    """Key data alone were recorded: they stand between the phases that ran, which say so."""
    runs = [timed(tmp_path / side, steps=2, **NO_LAYERS) for side in "ab"[:sides]]
    comparison = compare_runs(*runs) if sides == 2 else None
    page = shown_page(tmp_path, runs, comparison)
    for step in (0, 1):
        items = page.json("strip")["places"][f"{step}-0"]
        names = [page.head[f"{item[0]}s"][item[1]] for item in items]
        first, second, third, *_ = PHASES
        assert names[:6] == ["prompts", first, "responses", second, "old_log_prob", third]
        phases = [item for item in items if item[0] == "phase"]
        assert [page.head["phases"][item[1]] for item in phases] == PHASES
        for item in phases:
            assert item[3:5] == [0.5, 0.5 if sides == 2 else None]
            assert (item[5], item[9]) == (0, ["not_recorded"])
    assert not page.head["heat"]


def test_a_phase_that_was_recorded_but_not_compared_is_not_said_to_be_unrecorded(tmp_path):
    """B's configuration leaves the reference out."""
    a = timed(tmp_path / "a", steps=1)
    b = timed(tmp_path / "b", steps=1, reference_dump=False, critic_train_dump=False)
    page = shown_page(tmp_path, [a, b], compare_runs(a, b))
    flags = {
        page.head["phases"][item[1]]: item[9]
        for item in page.json("strip")["places"]["0-0"]
        if item[0] == "phase"
    }
    assert [*flags] == PHASES
    assert flags["reference_compute_log_prob"] == ["not_compared"]
    assert flags["actor_update"] == []


def test_what_agrees_as_a_whole_is_in_the_maps(runs, tmp_path, monkeypatch):
    """Of very many records those that agree are no findings; maps and records hold them."""
    monkeypatch.setattr("mindrlhf_msprobe.comparison.compare.FOLD_ABOVE", 10)
    comparison = compare_runs(*runs)
    assert comparison.agreements
    opened = tuple(map(open_run, runs))
    folded, status = shown_page(tmp_path, opened, comparison), None
    status, norm = folded.heat("status"), folded.heat("norm")
    for entry in opened[0].entries():
        at = entry.phase, entry.name, entry.step, entry.rank
        returned = [r.leaf for r in entry.records if r.io in ("output", "parameters_grad")]
        norms = [leaf.norm for leaf in returned if leaf.norm is not None]
        assert status[at] >= 0, at
        if norms and max(norms):
            assert value(norm[at]) == pytest.approx(max(norms), rel=0.002)
    compared = sum(cell[4] for cell in folded.head["places"]["cells"])
    assert compared == comparison.verdict.compared
    for (_, name), record in folded.records(0, 0).items():
        assert record["s"] == "identical", name


def test_one_run_shows_its_own_numbers_and_findings(tmp_path):
    """Norms, and where the NaN is; the page opens at the check's first finding."""
    faults = [Fault("layers.1.mlp", "actor_update", step=1, change=a_nan)]
    run = record_training(tmp_path / "run", steps=3, faults=faults)
    check = check_run(run)
    page = shown_page(tmp_path, [run], None, (check,))
    assert page.head["kind"] == "run"
    assert page.head["answer"]["place"]["step"] == check.findings[0].place.step
    non_finite = page.heat("non_finite")
    for entry in open_run(run).entries():
        returned = [r.leaf for r in entry.records if r.io in ("output", "parameters_grad")]
        wanted = sum((leaf.nan_count or 0) + (leaf.inf_count or 0) for leaf in returned)
        assert non_finite[entry.phase, entry.name, entry.step, entry.rank] == wanted
    assert [one["text"] for one in page.json("findings")]
    backward = {one["direction"] for one in page.head["heat"]}
    assert backward == {direction_of(entry.name) for entry in open_run(run).entries()}


def test_the_step_as_it_ran_tells_a_warning_from_an_error(tmp_path):
    """Each phase and key has the gravest severity of what was found there."""
    run = HealthRun(tmp_path / "run")
    run.data("responses", np.ones((2, 3), np.int32))
    with run.phase("actor_update"):
        run.call("head", output=a_nan_leaf())
    run.data("loss", 1.0)
    run.end_step()
    opened = open_run(run.close())
    page = shown_page(tmp_path, [opened], None, (check_run(opened.path),))
    names = {"phase": page.head["phases"], "key": page.head["keys"]}
    items = page.json("strip")["places"]["0-0"]
    found = {names[item[0]][item[1]]: (item[8] > 0, item[10]) for item in items}
    assert found["responses"] == (True, "warning")
    assert found["actor_update"] == (True, "error")
    assert found["loss"] == (False, None)


def test_stored_tensors_show_where_they_differ(tmp_path):
    """First values, histogram and the largest error of each part, by numpy."""
    fault = Fault("layers.0.mlp", "actor_compute_log_prob")
    settings = {"task": "tensor", "steps": 1}
    a = record_training(tmp_path / "a", **settings)
    b = record_training(tmp_path / "b", faults=[fault], **settings)
    comparison, opened = compare_runs(a, b), (open_run(a), open_run(b))
    record = comparison.verdict.first_divergence.record
    shown = shown_page(tmp_path, opened, comparison).records(0, 0)["actor_compute_log_prob", record]
    x, y = (
        next(
            r.array()
            for entry in run.entries("actor_compute_log_prob", 0, 0)
            for r in entry.records
            if r.name == record
        )
        for run in opened
    )
    difference = np.abs(np.float64(x) - np.float64(y))
    assert shown["a"]["first"] == pytest.approx(x.ravel()[:8].tolist())
    assert shown["e"]["different"] == np.count_nonzero(difference)
    assert sum(shown["e"]["histogram"]["counts"]) == np.count_nonzero(difference)
    assert max(shown["e"]["rows"]["values"]) == pytest.approx(difference.max(), rel=1e-3)
    first = np.unravel_index(int((difference != 0).argmax()), difference.shape)
    assert shown["e"]["first_mismatch"] == [*map(int, first)]


def test_too_many_values_leave_steps_out_but_never_those_of_interest():
    """What is left out is every second step, again and again; memory stays bounded."""
    from mindrlhf_msprobe.report.page.data import Blocks
    from mindrlhf_msprobe.report.page.overview import Heat, Measure

    heat = Heat([Measure("norm", "log")], [(37, 0)], most=500)
    for step in range(100):
        for cell in range(50):
            heat.put((step, 0), "actor_update", f"Cell.l{cell}.Dense.forward.0", [step + 3])
    blocks = Blocks()
    places = [(step, 0) for step in range(100)]
    assert heat.write(blocks, places, ["actor_update"]) == [
        {"phase": 0, "direction": "forward", "rows": 50}
    ]
    assert heat.left_out
    raw = zlib.decompress(base64.b64decode(dict(blocks)["heat-0-forward-norm"]))
    codes = np.frombuffer(raw, "<i2").reshape(50, 100)
    there = codes[0] != 0
    assert 4 <= there.sum() <= 12
    assert there[0]
    assert there[37]
    assert (codes[:, there] == np.arange(100)[there] + 3).all()


def test_a_step_that_one_run_lacks_is_missing_and_one_not_asked_for_is_plain(runs, tmp_path):
    """The matrix shows every step of either run."""
    b = record_training(tmp_path / "b", steps=2, ranks=(0, 1))
    opened = open_run(runs[0]), open_run(b)
    for steps, wanted in (
        (None, {0: "same", 1: "same", 2: "missing"}),
        ("0", {0: "same", 1: "plain"}),
    ):
        comparison = compare_runs(runs[0], b, steps=steps, common=True)
        places = shown_page(tmp_path, opened, comparison).head["places"]
        states = {places["steps"][step]: state for step, rank, state, *_ in places["cells"]}
        assert {step: states[step] for step in wanted} == wanted


def test_a_curve_stands_where_its_quantity_belongs(tmp_path):
    """The norm of the value head's gradients is one of gradients."""
    run = HealthRun(tmp_path / "run")
    with run.phase("critic_update"):
        run.gradients("value_head", weight=tensor())
    run.data("values", np.ones(3, np.float32))
    run.end_step()
    groups = shown_page(tmp_path, [run.close()]).json("course")["groups"]
    found = {group["id"]: [one["label"] for one in group["series"]] for group in groups}
    assert "gradient_norm[value_head]" in found["gradients"]
    assert found["advantages"] == ["values"]


def test_rollout_against_training_is_one_group_of_curves(tmp_path):
    """Every metric, verl's older ones too, and none of them among those of the reference's KL."""
    run = HealthRun(tmp_path / "run")
    old = -np.ones((2, 3), np.float32)
    run.data("rollout_log_prob", old * np.float32([0.5, 1, 2]))
    run.data("old_log_prob", old + np.float32([0.1, 0.2, 0.3]))
    run.data("ref_log_prob", old)
    run.end_step()
    groups = shown_page(tmp_path, [run.close()]).json("course")["groups"]
    found = {group["id"]: {one["label"] for one in group["series"]} for group in groups}
    assert found["rollout"] == {*METRICS}
    assert found["kl"] == {"kl_k1", "kl_k3"}


def test_of_too_many_curves_both_runs_keep_the_same(runs, tmp_path, monkeypatch):
    """A curve of A without its other side says nothing of how far they are apart."""
    monkeypatch.setattr("mindrlhf_msprobe.report.page.page._MOST_SERIES", 10)
    groups = shown_page(tmp_path, [runs[0], runs[1]]).json("course")["groups"]
    sides = defaultdict(list)
    for series in (one for group in groups for one in group["series"]):
        sides[series["side"]].append((series["label"], series["rank"], series.get("statistic")))
    assert len(sides["A"]) == 5
    assert sides["A"] == sides["B"]


@pytest.mark.parametrize("rewards", [[0.5, 2.0], np.array([0.5, 2.0], np.float32)])
def test_rewards_stand_beside_their_samples(tmp_path, rewards):
    """Lists and arrays, one number a row."""
    run = HealthRun(tmp_path / "run")
    run.data("responses", ["a b", "c"])
    run.data("rewards", rewards)
    run.end_step()
    samples = shown_page(tmp_path, [run.close()]).json("text-0-0")["samples"]
    assert [(one["a"]["text"], one["reward"]["a"]) for one in samples] == [("a b", 0.5), ("c", 2.0)]


def page_of(tmp_path, *sides):
    """Write the page of runs of which each saves {key: [its saves]} in one step."""
    paths = []
    for name, saves in zip("ab", sides):
        run = HealthRun(tmp_path / name)
        for key, values in saves.items():
            for value in values:
                run.data(key, value)
        run.end_step()
        paths.append(run.close())
    comparison = compare_runs(*paths) if len(paths) > 1 else None
    return shown_page(tmp_path, paths, comparison)


def test_responses_differ_also_behind_where_they_are_cut(tmp_path):
    """Long ones are the usual: they are compared whole, and shown around the difference."""
    ids = np.arange(9000, dtype=np.int32)
    others, logs = np.where(ids < 8000, ids, ids + 1), -ids.astype(np.float32)
    a, b = (
        {"responses": [np.stack([ids, x])], "log_prob": [np.stack([logs, logs])]}
        for x in (ids, others)
    )
    same, unlike = page_of(tmp_path / "ids", a, b).json("text-0-0")["samples"]
    assert not same["differs"]
    assert (unlike["differs"], unlike["first_difference"]) == (True, 8000)
    begin = unlike["b"]["begin"]
    assert unlike["b"]["ids"][8000 - begin] == 8001
    assert unlike["b"]["log_probs"][8000 - begin] == -8000
    assert (unlike["a"]["size"], unlike["a"]["cut"]) == (9000, True)
    texts = ({"responses": [["w " * 15_000 + end]]} for end in "xy")
    (row,) = page_of(tmp_path / "texts", *texts).json("text-0-0")["samples"]
    assert (row["differs"], row["first_difference"]) == (True, 30_000)
    assert row["b"]["text"].endswith(" y")


def test_responses_of_all_saves_of_a_step_are_shown(tmp_path):
    """A step may save them batch by batch, with rewards beside each."""
    sides = (
        {"responses": [["one"], ["two", last]], "rewards": [[0.5], [1.0, 2.0]]} for last in "ab"
    )
    rows = page_of(tmp_path, *sides).json("text-0-0")["samples"]
    assert [row["a"]["text"] for row in rows] == ["one", "two", "a"]
    assert [row["reward"]["b"] for row in rows] == [0.5, 1.0, 2.0]
    assert [row["differs"] for row in rows] == [False, False, True]


def test_what_the_loss_is_given_is_no_loss(tmp_path):
    """Token ids among its inputs draw no curve beside the losses."""
    given = {"prompt_completion_ids": np.arange(4), "advantages": np.ones(4, np.float32)}
    page = page_of(tmp_path, {"loss": [1.0], "loss_inputs": [given]})
    curves = {
        one["id"]: [series["label"] for series in one["series"]]
        for one in page.json("course")["groups"]
    }
    assert curves["loss"] == ["loss"]
    assert "loss_inputs.advantages" in curves["advantages"]
    assert "loss_inputs.prompt_completion_ids" in curves["other"]


def test_large_integers_are_told_apart(tmp_path):
    """JavaScript and float64 have the same number for both."""
    sides = ({"ids": [np.array([2**60 + more, -5], np.int64)]} for more in (0, 1))
    (key,) = page_of(tmp_path, *sides).json("place-0-0")["keys"]
    (record,) = key["r"]
    assert record["a"]["first"] == [str(2**60), -5]
    assert record["b"]["first"] == [str(2**60 + 1), -5]
    assert (record["e"]["different"], record["e"]["first_mismatch"]) == (1, [0])


def test_what_cannot_be_read_is_missing_and_nothing_is_said_to_differ(runs, tmp_path):
    """A journal that was cut: its step is no red one, and stands where it ran."""
    b = tmp_path / "b"
    shutil.copytree(runs[0], b)
    journal = next((b / "reference_compute_log_prob").rglob("step1/rank0/records.jsonl"))
    journal.write_bytes(journal.read_bytes()[:3000])
    comparison = compare_runs(runs[0], b)
    page = shown_page(tmp_path, [runs[0], b], comparison)
    places = page.head["places"]
    states = {
        (places["steps"][s], places["ranks"][r]): state for s, r, state, *_ in places["cells"]
    }
    assert states[1, 0] == "missing"
    items = page.json("strip")["places"]["1-0"]
    assert not any(item[6] for item in items)
    phases = [page.head["phases"][item[1]] for item in items if item[0] == "phase"]
    assert phases.index("reference_compute_log_prob") == 2


def test_one_runs_key_data_stand_in_the_order_in_which_they_were_saved(tmp_path):
    """Not by their names; as the page of two runs has it."""
    run = HealthRun(tmp_path / "run")
    for key in ("values", "rewards", "advantages", "prompts"):  # prompts were there before
        run.data(key, np.ones(2, np.float32))
    run.end_step()
    page = shown_page(tmp_path, [run.close()])
    items = page.json("strip")["places"]["0-0"]
    assert [page.head["keys"][item[1]] for item in items] == [
        "prompts",
        "values",
        "rewards",
        "advantages",
    ]


def test_every_step_in_which_something_was_found_shows_it(tmp_path):
    """A NaN that stays: not only the first step is unhealthy."""
    run = HealthRun(tmp_path / "run")
    for step in range(4):
        with run.phase("actor_update"):
            run.call("head", output=a_nan_leaf() if step else tensor())
        run.end_step()
    path = run.close()
    check = check_run(path)
    places = shown_page(tmp_path, [path], None, (check,)).head["places"]
    found = [state for _, _, state, *_ in places["cells"]]
    assert found[0] == "healthy"
    assert found[1] == "error"
    assert check.findings[0].times == 3
    assert found == ["healthy", "error", "error", "error"]


def test_texts_have_no_numbers(tmp_path):
    """A text is no tensor of bytes: neither mean nor cosine is shown."""
    paths = []
    for side, text in (("a", "x"), ("b", "y")):
        run = HealthRun(tmp_path / side)
        run.data("responses", [text, "the same"])
        run.end_step()
        paths.append(run.close())
    comparison = compare_runs(*paths)
    (key,) = shown_page(tmp_path, paths, comparison).json("place-0-0")["keys"]
    assert {one["s"] for one in key["r"]} == {"different", "identical"}
    for record in key["r"]:
        assert "m" not in record
        assert {*record["a"]} <= {"value", "fp"}


def test_a_distance_of_norms_is_called_one(pair, tmp_path):
    """Without elements it is the least that the distance can be."""
    _, page = pair
    labels = {one["name"]: one["label"] for one in page.head["measures"]}
    assert "norms" in labels["distance"][0]
    settings = {"task": "tensor", "steps": 1}
    a = record_training(tmp_path / "a", **settings)
    b = record_training(tmp_path / "b", faults=[Fault("head", "actor_update")], **settings)
    comparison, opened = compare_runs(a, b), (open_run(a), open_run(b))
    labels = {
        one["name"]: one["label"]
        for one in shown_page(tmp_path, opened, comparison).head["measures"]
    }
    assert labels["distance"][0] == "relative distance"


def test_a_path_of_odd_digits_is_no_argument(tmp_path):
    """`²` is a digit to Python and no number: a run from elsewhere may hold it."""
    run = HealthRun(tmp_path / "run")
    with run.phase("actor_update"):
        run.call("head")
    run.end_step()
    path = run.close()
    journal = next((path / "actor_update").rglob("records.jsonl"))
    line = json.loads(journal.read_text(encoding="utf-8"))
    (leaf,) = line["input_args"]
    line |= {"input_args": {"²": leaf}, "input_names": ["x"]}
    journal.write_text(json.dumps(line) + "\n", encoding="utf-8")
    names = [name for _, name in shown_page(tmp_path, [path]).records(0, 0)]
    assert "Cell.head.Dense.forward.0.input.²" in names


@pytest.mark.parametrize("beside", ["same key", "another key"])
def test_tokens_are_counted_without_padding_and_saved_texts_are_shown(tmp_path, beside):
    """Ids of padding are none, and a text that was saved beside the ids needs no tokenizer."""
    run = HealthRun(tmp_path / "run")
    run.recording.writer.save_configurations(lambda: {"pad_token_id": 0, "eos_token_id": 1})
    run.data("prompts", np.array([[5, 6], [0, 7]]))
    run.data("responses", np.array([[10, 11, 12, 1, 0, 0], [13, 1, 0, 0, 0, 0]]))
    run.data("responses" if beside == "same key" else "response_texts", ["one two", "three"])
    run.end_step()
    path = run.close()
    samples = shown_page(tmp_path, [path], None).json("text-0-0")["samples"]
    assert [one["a"]["size"] for one in samples] == [4, 2]
    assert [one["a"]["text"] for one in samples] == ["one two", "three"]
