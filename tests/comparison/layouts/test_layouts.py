"""Runs of other layouts: parts of several ranks are compared as the whole."""

from __future__ import annotations

import json
import pickle
import re

import numpy as np
import pytest
import yaml
from helpers.checkpoint_files import write_strategy
from helpers.runs import record_data
from helpers.snapshots import rewrite
from helpers.split_runs import SHARDS, network, places, record_split

from mindrlhf_msprobe import ConfigError, UsageError, compare_runs
from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.comparison.judging import arrays
from mindrlhf_msprobe.comparison.layouts import judging
from mindrlhf_msprobe.findings import Outcome, Status
from mindrlhf_msprobe.storage.arrays import expression

GRIDS = [
    {"tp": 2},
    {"tp": 4},
    {"dp": 2},
    {"cp": 2},
    {"ep": 2},
    {"dp": 2, "tp": 2},
    {"cp": 2, "tp": 2},
    {"pp": 2, "dp": 2, "tp": 2},
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    cells = network(np.random.default_rng(5))
    return cells, record_split(tmp_path_factory.mktemp("whole") / "a", cells, {})


def layout(path, grid, **others):
    content = {"axes": grid, **others}
    known = {n: {x: v for x, v in how.items() if x in grid} for n, how in SHARDS.items()}
    content.setdefault("shards", known)
    path.write_text(json.dumps({"b": content}))
    return path


def one_more(at_rank, at_place):
    """Return what adds 1 to the last element of one value of one rank."""

    def change(rank, place, value):
        if (rank, place) != (at_rank, at_place):
            return value
        value = value.copy()
        value.reshape(-1)[-1] += 1
        return value

    return change


def notes(result):
    return " ".join(map(str, result.verdict.first_divergence.reasons))


@pytest.mark.parametrize("rules", [True, False], ids=["rules", "by shape"])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_parts_of_a_whole_are_identical_to_it_and_an_error_in_one_names_its_rank(
    whole, tmp_path, grid, rules
):
    cells, a = whole
    of = {} if rules else {"shards": {"wo.*output": {"tp": "partial"}} if "tp" in grid else {}}
    given = layout(tmp_path / "l.yaml", grid, **of)
    b = record_split(tmp_path / "b", cells, grid)

    result = compare_runs(a, b, layout=given)

    assert result.verdict.status is Outcome.IDENTICAL, result.verdict
    assert {f.status for f in result.findings} == {Status.IDENTICAL}
    assert not result.verdict.coverage

    rank = len(places(grid)) - 1
    place = "layers.2.experts.output" if "ep" not in grid else "layers.2.experts.parameters"
    c = record_split(tmp_path / "c", cells, grid, change=one_more(rank, place))

    unlike = compare_runs(a, c, layout=given)

    first = unlike.verdict.first_divergence
    assert place.rpartition(".")[0] in first.record
    assert first.max_abs_err == 1
    said = _named(unlike)
    assert {n.code for n in said} >= {"note.parts_differ"}
    assert [n.params["ranks"] for n in said] == [[rank]] * len(said)


def _named(result):
    found = [f for f in result.findings if not f.status.agrees]
    assert len(found) == 1
    return [n for n in found[0].notes if "ranks" in n.params]


def test_a_copy_that_differs_is_named_although_the_first_one_agrees(whole, tmp_path):
    cells, a = whole
    changed = one_more(1, "layers.1.experts.parameters")
    b = record_split(tmp_path / "b", cells, {"tp": 2}, change=changed)

    result = compare_runs(a, b, layout=layout(tmp_path / "l.yaml", {"tp": 2}))

    first = result.verdict.first_divergence
    assert (first.record.split(".Dense")[0], first.cause.value) == (
        "Cell.layers.1.experts",
        "parameter",
    )
    assert "in B the part of rank 1 differs" in notes(result)


def strategy_of(cells, path, grid=(2, 2)):
    """Write how MindSpore would say that parameters are cut, over a matrix of dp and tp."""
    maps = {"wq": (0, -1), "wo": (-1, 0)}
    layouts = {}
    for cell in cells:
        for name, value in cell.parameters.items():
            cut = maps.get(cell.name.rpartition(".")[2], (-1,) * value.ndim)
            layouts[f"backbone.{cell.name}.{name}"] = (grid, cut)
    return write_strategy(path, layouts)


def test_a_strategy_file_says_how_parameters_are_cut(whole, tmp_path):
    cells, a = whole
    grid = {"dp": 2, "tp": 2}
    strategy_of(cells, tmp_path / "strategy/s.ckpt")
    rules = {"shards": {"wo.*output": {"dp": 0, "tp": "partial"}}}
    given = layout(tmp_path / "l.yaml", grid, strategy="strategy", **rules)
    b = record_split(tmp_path / "b", cells, grid)
    changed = one_more(3, "layers.2.wq.parameters")
    c = record_split(tmp_path / "c", cells, grid, change=changed)

    assert compare_runs(a, b, layout=given).verdict.status is Outcome.IDENTICAL
    assert "in B the part of rank 3 differs" in notes(compare_runs(a, c, layout=given))


@pytest.mark.parametrize(
    ("strategy", "why"),
    [
        ("other.ckpt", "it is for 8 ranks, the grid has 4"),
        ("pickle.ckpt", "strategy: "),
        ("nothing.ckpt", "nothing.ckpt"),
        ("empty", "is not a strategy"),
        ([], "is not a strategy"),
        (7, "is not a strategy"),
    ],
)
def test_a_strategy_that_cannot_be_used_is_refused(whole, tmp_path, strategy, why):
    cells, a = whole
    b = record_split(tmp_path / "b", cells, {"dp": 2, "tp": 2})
    strategy_of(cells, tmp_path / "other.ckpt", grid=(4, 2))
    (tmp_path / "pickle.ckpt").write_bytes(pickle.dumps({"a": 1}))
    (tmp_path / "empty").mkdir()
    given = layout(tmp_path / "l.yaml", {"dp": 2, "tp": 2}, strategy=strategy)

    with pytest.raises(ConfigError, match=re.escape(why)):
        compare_runs(a, b, layout=given)


def test_a_strategy_alone_needs_the_grid_that_a_run_recorded(whole, tmp_path):
    cells, a = whole
    b = record_split(tmp_path / "b", cells, {"dp": 2, "tp": 2})
    file = strategy_of(cells, tmp_path / "s.ckpt")

    with pytest.raises(ConfigError, match="places of its ranks"):
        compare_runs(a, b, layout=file)


def test_copies_that_add_up_to_the_whole_differ_and_it_is_said(whole, tmp_path):
    """A partial sum that no rule names may also be a reduction that is missing."""
    cells, a = whole
    b = record_split(tmp_path / "b", cells, {"tp": 2})

    result = compare_runs(a, b, layout=layout(tmp_path / "l.yaml", {"tp": 2}, shards={}))

    assert "wo" in result.verdict.first_divergence.record
    assert "the sum of what ranks 0, 1 of B hold is what the other run has" in notes(result)
    assert "`partial` in the layout" in notes(result)


@pytest.mark.parametrize("dim", [2, -3])
def test_a_dimension_that_a_shape_does_not_have_is_the_layouts_fault(whole, tmp_path, capsys, dim):
    """Pattern, dimension and shape are named; no file is blamed."""
    cells, a = whole
    b = record_split(tmp_path / "b", cells, {"tp": 2})
    shards = {"wq.*weight": {"tp": dim}, **SHARDS}
    shards = {n: {"tp": how["tp"]} for n, how in shards.items() if "tp" in how}
    given = layout(tmp_path / "l.yaml", {"tp": 2}, shards=shards)
    command = ["compare", str(a), str(b), "--layout", str(given), "-o", str(tmp_path / "o")]

    assert main([*command, "--lang", "en"]) == 1

    said = " ".join(capsys.readouterr().out.split())
    assert f"('wq.*weight') cuts dimension {dim} over tp, but the ranks hold shape [" in said
    assert "correct the layout" in said
    assert "only the file is to blame" not in said


def test_samples_are_matched_by_their_tokens(whole, tmp_path):
    cells, a = whole
    b = record_split(tmp_path / "b", cells, {"dp": 2}, order=[2, 0, 3, 1])
    changed = one_more(0, "layers.0.wq.output")
    c = record_split(tmp_path / "c", cells, {"dp": 2}, order=[2, 0, 3, 1], change=changed)
    given = layout(tmp_path / "l.yaml", {"dp": 2}, shards={})

    same = compare_runs(a, b, layout=given)
    result = compare_runs(a, c, layout=given)

    # Key data of another micro-step than that of the phase hold no ids of their own.
    assert same.verdict.status is Outcome.IDENTICAL, same.verdict
    assert "rank 0 differs" in notes(result)


TEXTS = ["a", "bb", "ccc", "dd"]
LOSSES = [1.0, 3.0]


def record_keys(root, ranks, order=(0, 1, 2, 3), rewards=(0, 1, 2, 3)):
    """Record the key data of four samples, that of each rank by itself."""
    for rank in range(ranks):
        own = [*order][rank * 4 // ranks : (rank + 1) * 4 // ranks]
        saves = {
            "prompts": [TEXTS[i] for i in own],
            "responses": np.arange(24).reshape(4, 6)[own],
            "rewards": np.array(rewards, np.float32)[own],
            "batch_size": len(own),
            "loss": LOSSES[rank] if ranks > 1 else sum(LOSSES) / 2,
        }
        record_data(root, saves.items(), rank=rank)
    return root


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 3, 0, 2)], ids=str)
def test_key_data_of_samples(tmp_path, order):
    a = record_keys(tmp_path / "a", 1)
    b = record_keys(tmp_path / "b", 2, order)
    c = record_keys(tmp_path / "c", 2, order, rewards=(0, 1, 9, 3))
    given = layout(tmp_path / "l.yaml", {"dp": 2}, shards={"loss": {"dp": "mean"}})

    result = compare_runs(a, b, layout=given)
    unlike = compare_runs(a, c, layout=given)
    no_mean = compare_runs(a, b, layout=layout(tmp_path / "p.yaml", {"dp": 2}, shards={}))

    assert result.verdict.status is Outcome.IDENTICAL, result.verdict
    assert len(result.findings) == len(TEXTS) + 3
    assert [gap.message.params for gap in result.verdict.coverage] == [{"small": 2, "large": 4}]
    (found,) = [f for f in unlike.findings if not f.status.agrees]
    assert found.key == "rewards"
    assert found.notes[-1].params["ranks"] == [order.index(2) // 2]
    assert no_mean.verdict.status is Outcome.IDENTICAL
    assert {gap.message.code for gap in no_mean.verdict.coverage} >= {"layout.values_differ"}


def test_layers_of_a_stage_are_counted_on(whole, tmp_path):
    cells, a = whole
    grid = {"pp": 2, "tp": 2}
    given = layout(tmp_path / "l.yaml", grid, shift={"pp": {"layers": [0, 2]}})
    b = record_split(tmp_path / "b", cells, grid, local_names=True)
    changed = one_more(3, "layers.3.wq.output")
    c = record_split(tmp_path / "c", cells, grid, local_names=True, change=changed)

    assert compare_runs(a, b, layout=given).verdict.status is Outcome.IDENTICAL
    result = compare_runs(a, c, layout=given)
    assert "layers.3.wq" in result.verdict.first_divergence.record
    assert "rank 3" in notes(result)


def test_two_runs_of_unlike_layouts(whole, tmp_path):
    cells, _ = whole
    grids = {"a": {"dp": 2, "tp": 2}, "b": {"tp": 4}}
    a = record_split(tmp_path / "a", cells, grids["a"])
    b = record_split(
        tmp_path / "b", cells, grids["b"], change=one_more(2, "layers.1.wq.parameters")
    )
    file = tmp_path / "l.yaml"
    both = {
        side: {
            "axes": grid,
            "shards": {n: {x: v for x, v in how.items() if x in grid} for n, how in SHARDS.items()},
        }
        for side, grid in grids.items()
    }
    file.write_text(json.dumps(both))

    result = compare_runs(a, b, layout=file)

    (found,) = [f for f in result.findings if not f.status.agrees]
    assert "layers.1.wq" in found.record
    assert [(n.params["side"], n.params["ranks"]) for n in found.notes] == [
        ("A", [1, 3]),
        ("B", [2]),
    ]


def test_statistics_of_parts_are_put_together_where_they_can_be(whole, tmp_path):
    cells, _ = whole
    grid = {"tp": 2}
    a = record_split(tmp_path / "a", cells, {}, task="statistics")
    b = record_split(tmp_path / "b", cells, grid, task="statistics")
    changed = one_more(1, "layers.1.wq.output")
    c = record_split(tmp_path / "c", cells, grid, task="statistics", change=changed)
    given = layout(tmp_path / "l.yaml", grid)

    same = compare_runs(a, b, layout=given)
    unlike = compare_runs(a, c, layout=given)

    assert same.verdict.status is Outcome.WITHIN_TOLERANCE
    assert sum(gap.records for gap in same.verdict.coverage) == 4  # partial sums
    cuts = [f for f in same.findings if "wq" in f.record and f.io != "input"]
    assert {f.status for f in cuts} == {Status.WITHIN_TOLERANCE}
    assert "layers.1.wq" in unlike.verdict.first_divergence.record
    summed = {"wq.*input": {"tp": "partial"}, **SHARDS}
    summed = {n: {x: v for x, v in how.items() if x in grid} for n, how in summed.items()}
    first = compare_runs(a, c, layout=layout(tmp_path / "m.yaml", grid, shards=summed)).verdict
    said = first.first_divergence.explanation
    assert "input.0 was not compared (statistics of partial sums do not tell" in said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"axes": {"tp": 3}}, "a grid of 3 ranks fits neither run, A has 1 and B has 2"),
        ({"tp": 2}, "`axes`"),
        ({"axes": {"tp": 0}}, "tp has the size 0"),
        ({"axes": {"tp": 2}, "shard": {}}, "shard is not known"),
        ({"axes": {"tp": 2}, "ranks": {0: {"tp": 0}, 1: {"tp": 0}}}, "both at tp 0"),
        ({"axes": {"tp": 2}, "ranks": {0: {"tp": 0}}}, "no rank is at tp 1"),
        ({"axes": {"tp": 2}, "ranks": [0, 1]}, "has no place"),
        ({"axes": {"tp": 2}, "shards": {"w": {"dp": 0}}}, "is not a rule"),
        ({"axes": {"tp": 2}, "shards": {"w": {"tp": "sum"}}}, "is not a rule"),
        ({"axes": {"tp": 2}, "shards": {"(": {"tp": 0}}}, "cannot be used"),
        ({"axes": {"tp": 2}, "order": {"cp": "zigzag"}}, "expected zigzag"),
        ({"axes": {"tp": 2}, "shift": {"tp": {"layers": [0]}}}, "is not a shift"),
        ({"axes": {"tp": 2}, "scale": {"w": 0}}, "is not a scale"),
        ({"a": {"axes": {"tp": 1}}, "c": {}}, "c is not known"),
        ({"a": {"axes": {"tp": 2}}}, "B has the ranks 0, 1 and no layout"),
        ({"b": {"axes": {"tp": 1}}}, "does not name"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(split, tmp_path, content, said):
    a, b = split
    file = tmp_path / "l.yaml"
    file.write_text(yaml.safe_dump(content))

    with pytest.raises((ConfigError, UsageError)) as error:
        compare_runs(a, b, layout=file)

    assert said in str(error.value)


def test_a_layout_of_more_ranks_than_the_run_had_is_refused(whole, tmp_path):
    """A rank that did not record is one of the run's; there can be no others."""
    cells, a = whole
    b = record_split(tmp_path / "b", cells, {"tp": 2})
    for name in ("run.json", "run.rank1.json"):
        rewrite(b / name, {"world.size": 2})
    with pytest.raises(UsageError, match="B ran on 2 ranks, its layout has 4"):
        compare_runs(a, b, layout=layout(tmp_path / "l.yaml", {"tp": 4}))


@pytest.fixture(scope="module")
def split(whole, tmp_path_factory):
    cells, a = whole
    return a, record_split(tmp_path_factory.mktemp("split") / "b", cells, {"tp": 2})


def test_a_cut_that_does_not_fit_is_never_the_same(split, tmp_path):
    a, b = split
    for rule, status in (
        ({"wq.*weight": {"tp": 1}}, Status.SHAPE_MISMATCH),
        ({"wq.*weight": {"tp": 2}}, Status.UNREADABLE),
    ):
        result = compare_runs(a, b, layout=layout(tmp_path / "l.yaml", {"tp": 2}, shards=rule))

        found = {f.status for f in result.findings if "wq" in f.record and f.io == "parameters"}
        assert found == {status}


def test_a_rank_that_recorded_nothing_leaves_its_part_out(whole, tmp_path):
    cells, a = whole
    b = record_split(tmp_path / "b", cells, {"tp": 2}, skip=(1,))

    result = compare_runs(a, b, layout=layout(tmp_path / "l.yaml", {"tp": 2}))

    assert result.verdict.status is Outcome.IDENTICAL
    assert {f.io for f in result.findings} == {"output", "input", "parameters", "data"}
    assert not [f for f in result.findings if "wq" in f.record and f.io != "input"]
    assert [str(gap.reason) for gap in result.verdict.coverage] == ["the part of rank 1 is missing"]
    assert "nothing was recorded by rank 1" in " ".join(map(str, result.remarks))


def test_a_part_that_one_rank_lacks_cannot_be_compared(whole, tmp_path):
    cells, a = whole
    b = record_split(tmp_path / "b", cells, {"tp": 2})
    journal = b / "actor_compute_log_prob" / "step0" / "rank1" / "records.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(line for line in lines if "layers.2.wq" not in line))

    result = compare_runs(a, b, layout=layout(tmp_path / "l.yaml", {"tp": 2}))

    found = {f.status for f in result.findings if "layers.2.wq" in f.record}
    assert found == {Status.UNREADABLE}


def test_a_replay_of_what_was_put_together_is_refused(whole, tmp_path, capsys):
    cells, a = whole
    b = record_split(tmp_path / "b", cells, {"tp": 2}, change=one_more(1, "layers.1.wq.output"))
    given = layout(tmp_path / "l.yaml", {"tp": 2})
    out = tmp_path / "out"
    options = ["--layout", str(given), "--replay", "--lang", "en"]
    code = main(["compare", str(a), str(b), "-o", str(out), *options])
    said = capsys.readouterr()
    assert code == 1
    assert "layers.1.wq" in said.out
    assert "--replay" in said.err
    assert "layout" in said.err


def test_equal_layouts_change_nothing(whole, tmp_path):
    cells, _ = whole
    a, b = (record_split(tmp_path / name, cells, {"tp": 2}) for name in "ab")

    plain = compare_runs(a, b).to_json()
    given = compare_runs(a, b, layout=layout_of_both(tmp_path / "l.yaml")).to_json()

    assert given == plain


def layout_of_both(path):
    path.write_text(json.dumps({"axes": {"tp": 2}, "shards": SHARDS_OF_TP}))
    return path


SHARDS_OF_TP = {n: {x: v for x, v in how.items() if x == "tp"} for n, how in SHARDS.items()}


def test_large_records_are_compared_in_pieces_with_the_same_figures(split, tmp_path, monkeypatch):
    cells = network(np.random.default_rng(3), batch=2, tokens=64, width=64, layers=2)
    a = record_split(tmp_path / "a", cells, {})
    b = record_split(tmp_path / "b", cells, {"tp": 2}, change=one_more(1, "layers.1.wq.output"))
    given = layout(tmp_path / "l.yaml", {"tp": 2})

    at_once = compare_runs(a, b, layout=given)
    monkeypatch.setattr(judging, "WHOLE", 0)
    monkeypatch.setattr(expression, "WHOLE", 0)
    monkeypatch.setattr(expression, "CHUNK", 1000)
    monkeypatch.setattr(judging, "CHUNK", 1000)
    monkeypatch.setattr(arrays, "SPAN", 2048)
    in_pieces = compare_runs(a, b, layout=given)

    (first, second) = (
        [f for f in result.findings if not f.status.agrees] for result in (at_once, in_pieces)
    )
    assert first[0].metrics.max_abs_err == second[0].metrics.max_abs_err == 1
    assert first[0].metrics.first_mismatch == second[0].metrics.first_mismatch
    assert [f.notes for f in first] == [f.notes for f in second]
    assert {f.status for f in in_pieces.findings} == {f.status for f in at_once.findings}


def test_two_chunks_of_a_context_are_put_where_they_belong(whole, tmp_path):
    _, a = whole
    order = [0, 3, 1, 2]  # of four chunks: a rank holds the first and the last, or both between
    moved = network(np.random.default_rng(5))
    for cell in moved:
        for io in ("inputs", "output"):
            values = cell.inputs if io == "inputs" else [cell.output]
            chunks = [np.split(value, 4, axis=1) for value in values]
            again = [np.concatenate([parts[i] for i in order], axis=1) for parts in chunks]
            setattr(cell, io, again if io == "inputs" else again[0])
    b = record_split(tmp_path / "b", moved, {"cp": 2})

    given = layout(tmp_path / "l.yaml", {"cp": 2}, order={"cp": "zigzag"})
    assert compare_runs(a, b, layout=given).verdict.status is Outcome.IDENTICAL
    plain = layout(tmp_path / "p.yaml", {"cp": 2})
    assert compare_runs(a, b, layout=plain).verdict.status is Outcome.DIVERGED


@pytest.mark.parametrize("where", ["configurations.json", "run.json"])
def test_sizes_that_a_run_recorded_need_no_file(whole, tmp_path, where):
    cells = [cell for cell in network(np.random.default_rng(5)) if "wo" not in cell.name]
    a = record_split(tmp_path / "a", cells, {})
    b = record_split(tmp_path / "b", cells, {"tp": 2}, change=one_more(1, "layers.2.wq.output"))
    if where == "run.json":
        say_networks(b, parallel={"dp": 1, "tp": 2})
    else:
        sizes = {"data_parallel": 1, "model_parallel": 2}
        (b / where).write_text(json.dumps({"actor": {"parallel_config": sizes}}))

    result = compare_runs(a, b)

    assert "layers.2.wq" in result.verdict.first_divergence.record
    assert "the part of rank 1 differs" in notes(result)


def say_networks(run, **network):
    """Let both ranks of a run say this of their network."""
    for name in ("run.json", "run.rank1.json"):
        rewrite(run / name, {"networks": [{"role": "actor", **network}]})


def say_mesh(run, grid, ranks=None):
    """Let the ranks of a run say over which device mesh their parameters are spread."""
    for rank, at in places(grid).items():
        if ranks is not None and rank not in ranks:
            continue
        file = run / (f"run.rank{rank}.json" if rank else "run.json")
        mesh = {axis: {"size": size, "place": at[axis]} for axis, size in grid.items()}
        rewrite(file, {"networks": [{"role": "actor", "mesh": mesh}]})


@pytest.mark.parametrize("grid", [grid for grid in GRIDS if "pp" not in grid], ids=str)
def test_tensors_that_say_how_they_are_spread_need_no_file(whole, tmp_path, grid):
    """With partial sums, which no shape shows."""
    cells, a = whole
    b = record_split(tmp_path / "b", cells, grid, says_shards=True)
    say_mesh(b, grid)
    assert compare_runs(a, b).verdict.status is Outcome.IDENTICAL

    wrong = record_split(
        tmp_path / "c", cells, grid, says_shards=True, change=one_more(1, "layers.2.wo.output")
    )
    say_mesh(wrong, grid)
    result = compare_runs(a, wrong)
    assert result.verdict.first_divergence.record == "Cell.layers.2.wo.Dense.forward.0.output.0"


def test_a_pattern_counts_more_than_what_a_tensor_says(whole, tmp_path):
    cells, a = whole
    b = record_split(tmp_path / "b", cells, {"tp": 2}, says_shards=True)
    say_mesh(b, {"tp": 2})
    given = layout(tmp_path / "l.yaml", {"tp": 2}, shards={"layers.2.wo.*output": {"tp": "copy"}})
    result = compare_runs(a, b, layout=given)
    assert result.verdict.first_divergence.record == "Cell.layers.2.wo.Dense.forward.0.output.0"


@pytest.mark.parametrize("ranks", [[0], [1]])
def test_a_mesh_that_not_all_ranks_say_is_not_known(whole, tmp_path, ranks):
    cells, a = whole
    b = record_split(tmp_path / "b", cells, {"tp": 2}, says_shards=True)
    say_mesh(b, {"tp": 2}, ranks)
    assert compare_runs(a, b).verdict.status is not Outcome.IDENTICAL


@pytest.mark.parametrize(
    "mesh", [[], {"tp": 2}, {"tp": {"size": 1 << 40, "place": 0}}, {"tp": {"size": 2, "place": 2}}]
)
def test_a_mesh_that_is_none_is_not_used(whole, tmp_path, mesh):
    cells, a = whole
    b = record_split(tmp_path / "b", cells, {"tp": 2})
    say_networks(b, mesh=mesh)
    assert compare_runs(a, b).verdict.status is not Outcome.IDENTICAL


@pytest.mark.parametrize("where", ["run.json", "file"])
def test_a_strategy_beside_recorded_sizes_needs_no_layout(whole, tmp_path, where):
    """Of a compiled network run.json has it; a strategy file can be given instead."""
    cells = [cell for cell in network(np.random.default_rng(5)) if "wo" not in cell.name]
    a = record_split(tmp_path / "a", cells, {})
    b = record_split(tmp_path / "b", cells, {"tp": 2}, change=one_more(1, "layers.2.wq.parameters"))
    given = strategy_of(cells, tmp_path / "s.ckpt", grid=(1, 2))
    wrong = {"layers.1.wq.weight": {"devices": [1, 2], "map": [-1, 0]}}
    of_network = {"strategy": wrong} if where == "run.json" else {}
    say_networks(b, parallel={"dp": 1, "tp": 2}, **of_network)

    result = compare_runs(a, b, layout=None if where == "run.json" else given)

    first = result.verdict.first_divergence
    if where == "file":
        assert "layers.2.wq" in first.record
        assert "the part of rank 1 differs" in notes(result)
    else:  # what run.json says counts, before the shapes
        assert first.record.startswith("Cell.layers.1.wq.Dense.forward.0.parameters")
        assert first.cause.value == "shape"
