"""One pass over a run: what it opens, how often, and what it holds."""

from __future__ import annotations

import gc
from collections import Counter

import numpy as np
import pytest
from helpers.health_runs import HealthRun, tensor
from hypothesis import given, settings
from hypothesis import strategies as st

from mindrlhf_msprobe import check_run, open_run
from mindrlhf_msprobe.checks.check import Checking
from mindrlhf_msprobe.checks.loading import own_rules
from mindrlhf_msprobe.checks.views import steps
from mindrlhf_msprobe.storage.columns.columns import Columns
from mindrlhf_msprobe.storage.columns.layouts import Layouts
from mindrlhf_msprobe.storage.leaves import child_path
from mindrlhf_msprobe.storage.reading.reader import Run

KEYS = (
    "old_log_prob",
    "ref_log_prob",
    "log_prob",
    "ratio",
    "entropy",
    "kl",
    "advantages",
    "rewards",
)


def long_run(root, number, *, ranks=2, cells=4):
    for rank in range(ranks):
        run = HealthRun(root, rank)
        draw = np.random.default_rng(rank)
        for step in range(number):
            for name in ("actor_compute_log_prob", "actor_update"):
                with run.phase(name):
                    for cell in range(cells):
                        weight = tensor(fingerprint=f"xxh3_128:{step:016x}{cell:016x}")
                        run.call(f"layers.{cell}.mlp", parameters={"weight": weight})
            with run.phase("actor_update"):
                for cell in range(cells):
                    run.gradients(f"layers.{cell}.mlp", weight=tensor())
            for key in KEYS:
                run.data(key, draw.normal(0.0, 0.1, (4, 8)).astype(np.float32))
            run.end_step()
        path = run.close()
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return long_run(tmp_path_factory.mktemp("one_pass") / "run", 12)


def test_each_journal_is_opened_once(run, monkeypatch):
    opened = Counter()
    read = Run.journal

    def journal(self, *at):
        opened[at] += 1
        return read(self, *at)

    monkeypatch.setattr(Run, "journal", journal)
    result = check_run(run)
    assert len(result.checked) > 10
    assert {*opened.values()} == {1}
    assert len(opened) == 12 * 2 * 2


def test_each_array_of_key_data_is_read_once(run, monkeypatch):
    from mindrlhf_msprobe.storage import records

    opened = Counter()
    read = records.open_npy

    def open_npy(path, *args):
        opened[str(path)] += 1
        return read(path, *args)

    monkeypatch.setattr(records, "open_npy", open_npy)
    check_run(run)
    assert {*opened.values()} == {1}
    assert len(opened) >= 12 * 2 * 5  # some keys are of interest in the first step alone


def test_a_healthy_run_needs_no_object_an_entry(run, monkeypatch):
    made = []
    monkeypatch.setattr(Columns, "entry", lambda self, number: made.append(number))
    assert check_run(run).entries == 12 * 2 * 3 * 4
    assert not made


def held_by(root):
    """Count what is reachable from an object, without the run itself, code and types."""
    seen, stack = {}, [root]
    skipped = (type, type(gc), type(held_by), type(repr), Run)
    while stack:
        one = stack.pop()
        if id(one) not in seen and not isinstance(one, skipped):
            seen[id(one)] = one
            stack += gc.get_referents(one)
    return len(seen)


def test_what_is_held_does_not_grow_with_the_steps(tmp_path):
    """Rules hold as much after 52 steps as after 40, when every past is full."""
    opened = open_run(long_run(tmp_path / "run", 52, ranks=2, cells=1))
    checking, held = Checking(opened, own_rules()), []
    for step in steps(opened):
        checking.feed(step)
        if step.number >= 40:
            held.append(held_by(checking))
    assert held[-1] == held[0]


LEAF = st.fixed_dictionaries({"type": st.just("mindspore.Tensor"), "shape": st.just([2])})
VALUE = st.recursive(
    st.one_of(LEAF, st.none(), st.just({"type": "int", "value": 1}), st.just("text"), st.just({})),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["a", "b.c", "0"]), inner, max_size=3),
    ),
    max_leaves=6,
)


def flat(value, path=""):
    """Yield path and leaf of what is a tensor, or holds a value, in a structure."""
    if isinstance(value, dict) and isinstance(value.get("type"), str):
        yield path, value
        return
    items = value.items() if isinstance(value, dict) else enumerate(value or ())
    for name, item in () if isinstance(value, str) else items:
        yield from flat(item, child_path(path, str(name)))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(VALUE, VALUE), min_size=1, max_size=4))
def test_records_stand_where_the_entry_has_them(values):
    """Whatever structures follow each other, path and leaf are those of `flat`."""
    layouts, leaves, found = Layouts(), [], []
    for given_, output in values:
        line = {"entry": "Cell.a.B.forward.0", "input_args": given_, "output": output}
        found += layouts.structure(line, leaves).places
    expected = [
        ((part, path), leaf)
        for pair in values
        for part, value in zip(("input_args", "output"), pair)
        if value
        for path, leaf in flat(value)
    ]
    assert [*zip(found, leaves)] == expected
