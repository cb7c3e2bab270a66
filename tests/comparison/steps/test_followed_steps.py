"""A step of a run that is followed agrees where its values do, whenever they were recorded."""

import json
import re
import shutil

import pytest
from helpers.runs import record_training

from mindrlhf_msprobe import open_run
from mindrlhf_msprobe.comparison.following import StepByStep

STEP, PHASE = 1, "actor_update"
JOURNAL, SAVE = f"{PHASE}/step{STEP}/rank0/records.jsonl", f"data/*/step{STEP}/rank0/*/*.json"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return record_training(tmp_path_factory.mktemp("recorded") / "a", steps=2)


def lines_changed(change):
    """Return what changes the lines of a journal."""

    def changed(root):
        path = root / JOURNAL
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(line) + "\n" for line in change(lines)))

    return changed


def text_changed(files, pattern, by):
    """Return what changes the text of the first of some files."""

    def changed(root):
        path = sorted(root.glob(files))[0]
        path.write_text(re.sub(pattern, by, path.read_text(), count=1))

    return changed


def from_another_line(lines):
    return [{**line, "stack": 7, "frames": ['a "b"', "c"]} for line in lines]


def later(lines):
    return [{**line, "seq": line["seq"] + 1000, "end": line["end"] + 1000} for line in lines]


@pytest.mark.parametrize(
    ("change", "agrees"),
    [
        (lambda root: None, True),
        (lines_changed(lambda lines: lines[::-1]), True),
        (lines_changed(later), True),
        (lines_changed(from_another_line), True),
        (text_changed(SAVE, r'"seq": \d+', '"seq": 9999'), True),
        (text_changed(JOURNAL, "xxh3_128:", "xxh3_128:0"), False),
        (lines_changed(lambda lines: lines[1:]), False),
        (lambda root: shutil.rmtree(sorted((root / "data").iterdir())[0]), False),
        (lambda root: shutil.rmtree(root / PHASE), False),
        (lambda root: (root / JOURNAL).write_text("{"), False),
    ],
)
def test_what_differs_between_the_runs(recorded, tmp_path, change, agrees):
    """The order of lines, the time and the line of code say nothing of a value."""
    other = shutil.copytree(recorded, tmp_path / "b")
    change(other)
    steps = StepByStep(open_run(recorded), open_run(other), 0)
    assert (steps.compare(STEP) is None) is agrees
    assert not steps.had_nothing_in_common
