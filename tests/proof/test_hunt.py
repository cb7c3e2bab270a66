"""`hunt`: the smallest set of differences that makes a run differ from a good one."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mindrlhf_msprobe import UsageError
from mindrlhf_msprobe.proof.differences import Files
from mindrlhf_msprobe.proof.hunt import Search, hunt
from mindrlhf_msprobe.report.answer import as_text
from mindrlhf_msprobe.report.proof import hunt_lines

#: A trainer without a network: what it saves depends on its settings and its environment.
PROGRAM = """
import os, sys, yaml
from mindrlhf_msprobe import Probe

settings = yaml.safe_load(open(sys.argv[1])) if len(sys.argv) > 1 else {}
rate, act = settings.get("train", {}).get("rate", 0), settings.get("act")
if settings.get("crash"):
    sys.exit(3)
loss = 1.0
if act == "relu" and rate > 0.5:
    loss = 2.0
if os.environ.get("HUNTED") == "wrong":
    loss += 4.0
with Probe.from_config({"msprobe": True, "key_data_dump": True, "dump_path": "unused"}) as probe:
    probe.save_data(loss=loss, prompts=[1, 2])
    probe.step()
"""
GOOD = {"act": "gelu", "train": {"rate": 0.1, "seed": 1, "note": "a"}, "data": {"size": 3}}
BAD = {"act": "relu", "train": {"rate": 0.9, "seed": 1, "note": "b", "more": True}, "data": 4}


@pytest.fixture
def search(tmp_path, monkeypatch):
    """Return a function that hunts between files of settings or variables."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    (tmp_path / "trainer.py").write_text(PROGRAM)

    def find(*between, command=("{config}",), **options):
        written = []
        for number, (good, bad) in enumerate(between):
            for name, content in (("good", good), ("bad", bad)):
                is_text = isinstance(content, str)
                file = tmp_path / f"{name}{number}.{'env' if is_text else 'yaml'}"
                file.write_text(content if is_text else yaml.safe_dump(content))
                written.append(str(file))
        pairs = [written[i : i + 2] for i in range(0, len(written), 2)]
        program = [sys.executable, str(tmp_path / "trainer.py"), *command]
        return hunt(Search(pairs, tmp_path / "out", program, **options))

    return find


def names(found):
    return [sorted(setting.name for setting in one) for one in found.sets]


def test_two_settings_that_do_it_together(search, tmp_path):
    found = search((GOOD, BAD))
    assert found.found
    assert names(found) == [["act", "train.rate"]]
    assert found.rest_is_good is True
    assert len(found.settings) == 6
    written = json.loads((tmp_path / "out" / "hunt.json").read_text())
    assert written["found"] is True
    assert {one["name"] for one in written["sets"][0]} == {"act", "train.rate"}


@pytest.mark.slow
def test_two_sets_each_enough_by_itself(search):
    found = search((GOOD, BAD), ("HUNTED=right\nMORE=1\n", "# a comment\nexport HUNTED='wrong'\n"))
    assert sorted(names(found)) == [["HUNTED"], ["act", "train.rate"]]
    assert found.rest_is_good is True


def test_what_makes_no_difference_is_said(search):
    found = search(({"act": "gelu"}, {"act": "tanh"}))
    assert not found.found
    assert "BAD does not differ" in str(found.why[0])


def test_a_good_setup_that_does_not_run_is_said(search):
    found = search(({"crash": True}, {"act": "relu"}))
    assert not found.found
    assert "exit code 3" in str(found.why[0])


def test_a_value_that_is_empty_is_shown(search):
    found = search(("HUNTED=wrong\n", "HUNTED=\n"), command=())
    assert [(one.good, one.bad) for one in found.settings] == [("wrong", '""')]
    assert 'wrong in GOOD, "" in BAD' in as_text(hunt_lines(found))


def test_settings_of_the_recording_are_not_searched(search):
    sides = [{"act": "gelu", "msprobe_config": {"dump_path": path}} for path in "ab"]
    found = search(sides)
    assert not found.found
    assert found.settings == ()


def test_what_cannot_be_searched_is_refused(search, tmp_path):
    with pytest.raises(UsageError, match=r"no \{config\}"):
        search((GOOD, BAD), command=())
    with pytest.raises(UsageError, match="two YAML files"):
        hunt(Search([["no_such", "neither"]], tmp_path / "out", [sys.executable]))
    with pytest.raises(UsageError, match="NAME=value"):
        search(("A=1\nwhat is this\n", "A=2\n"), command=())


def git(directory, *arguments):
    who = ("-c", "user.email=a@b", "-c", "user.name=n")
    subprocess.run(["git", *who, *arguments], cwd=directory, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Return a function that makes commits 0 to 6, of which 5 is the first bad one."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    repository = tmp_path / "repository"
    repository.mkdir()
    git(repository, "init", "-q", ".")
    monkeypatch.chdir(repository)

    def commit(broken):
        for number in range(7):
            text = PROGRAM.replace("loss = 1.0", f"loss = {1.0 if number < 5 else 1.5}")
            text += f"# change {number}\n" + ("sys.exit(3)\n" if number in broken else "")
            (repository / "trainer.py").write_text(text)
            git(repository, "add", "-A")
            git(repository, "commit", "-q", "-m", f"change {number}")
        return repository

    return commit


@pytest.mark.slow
def test_the_first_bad_commit(repository, tmp_path):
    repository = repository(broken=[2])
    (repository / "mine.txt").write_text("not committed")
    found = hunt(Search([["HEAD~6", "HEAD"]], tmp_path / "out", [sys.executable, "trainer.py"]))
    assert found.found
    assert found.commit.bad == "change 5"
    assert (repository / "mine.txt").read_text() == "not committed"
    shown = subprocess.run(["git", "worktree", "list"], capture_output=True, text=True, check=True)
    assert len(shown.stdout.splitlines()) == 1


@pytest.mark.slow
def test_commits_that_cannot_be_run_are_named_by_what_they_say(repository, tmp_path):
    repository(broken=[3, 4])
    found = hunt(Search([["HEAD~6", "HEAD"]], tmp_path / "out", [sys.executable, "trainer.py"]))
    assert not found.found
    assert {one.bad for one in found.candidates} == {"change 3", "change 4", "change 5"}
    shown = as_text(hunt_lines(found))
    for one in found.candidates:
        assert f"{one.name}: {one.bad}" in shown
    for number in (3, 4):
        assert re.search(rf"\n  [0-9a-f]{{12}} change {number}: COMMAND failed", shown)


_VALUES = st.one_of(st.integers(0, 3), st.sampled_from(["x", "y", None, True]))
_TREES = st.recursive(_VALUES, lambda t: st.dictionaries(st.sampled_from("abc"), t), max_leaves=8)
_SETTINGS = st.dictionaries(st.sampled_from("abcd"), _TREES, max_size=4)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(_SETTINGS, _SETTINGS)
def test_all_differences_together_make_the_bad_file_and_none_the_good_one(good, bad):
    files = Files(good, bad)
    keys = [*files.differences()]

    def leaves(tree, path=()):
        if isinstance(tree, dict) and tree:
            return {
                k: v for key, item in tree.items() for k, v in leaves(item, (*path, key)).items()
            }
        return {path: repr(tree)} if path else {}

    assert leaves(files.mixed([])) == leaves(good)
    for order in itertools.islice(itertools.permutations(keys), 6):
        assert leaves(files.mixed(order)) == leaves(bad)


@given(st.integers(1, 12), st.data())
def test_the_set_that_is_found_is_smallest(count, data):
    """Without any of its members it is not bad; and it is one of those that were planted."""
    from mindrlhf_msprobe.proof.hunt import BAD as IS_BAD
    from mindrlhf_msprobe.proof.hunt import GOOD as IS_GOOD
    from mindrlhf_msprobe.proof.hunt import smallest

    sets = st.sets(st.integers(0, count - 1), min_size=1)
    planted = data.draw(st.lists(sets, min_size=1, max_size=3))

    def result(bad):
        return IS_BAD if any(one <= set(bad) for one in planted) else IS_GOOD

    found = smallest([*range(count)], result)
    assert result(found) == IS_BAD
    for left_out in found:
        assert result([one for one in found if one != left_out]) == IS_GOOD
