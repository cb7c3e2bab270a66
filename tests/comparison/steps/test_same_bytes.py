"""What two runs wrote the same is found the same without a look into it, and nothing else is."""

import json
import re
import shutil

import pytest
from helpers.runs import record_training

from mindrlhf_msprobe import compare_runs, open_run
from mindrlhf_msprobe.comparison.following import wrote_the_same

STEP, PHASE = 1, "actor_update"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return record_training(tmp_path_factory.mktemp("recorded") / "a", steps=2)


def lines_changed(change):
    def changed(root):
        path = root / PHASE / f"step{STEP}/rank0/records.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(line) + "\n" for line in change(lines)))

    return changed


def first_tensor(content):
    if isinstance(content, dict) and "fingerprint" in content:
        return content
    parts = content.values() if isinstance(content, dict) else content
    found = (first_tensor(part) for part in parts if isinstance(part, (dict, list)))
    return next((one for one in found if one is not None), None)


def of_a_tensor(**members):
    def change(lines):
        first_tensor(lines).update(members)
        return lines

    return lines_changed(change)


def swapped_in_time(lines):
    for name in ("seq", "end"):
        lines[0][name], lines[1][name] = lines[1][name], lines[0][name]
    return lines


def recorded_later(lines):
    return [{**line, "seq": line["seq"] + 1000, "end": line["end"] + 1000} for line in lines]


def called_from_elsewhere(lines):
    return [
        {**{name: one[name] for name in list(one)[:5]}, "stack": 7, "frames": ['a "b"', "c"]}
        | {name: one[name] for name in list(one)[5:] if name not in ("stack", "frames")}
        for one in lines
    ]


def saves_changed(change):
    def changed(root):
        for path in sorted(root.glob(f"data/*/step{STEP}/rank0/micro_step0/*.json"))[:1]:
            path.write_text(change(path.read_text()))

    return changed


SAME = {
    "nothing": lambda root: None,
    "the order of the lines": lines_changed(lambda lines: lines[::-1]),
    "when it was recorded": lines_changed(recorded_later),
    "the line of code": lines_changed(called_from_elsewhere),
    "when it was saved": saves_changed(lambda text: re.sub(r'"seq": \d+', '"seq": 9999', text)),
}
OTHER = {
    "one fingerprint": of_a_tensor(fingerprint="xxh3_128:0"),
    "one statistic": of_a_tensor(Max=7.25),
    "one entry less": lines_changed(lambda lines: lines[1:]),
    "one entry in the place of another": lines_changed(lambda lines: [*lines[1:], lines[1]]),
    "two entries in another order": lines_changed(swapped_in_time),
    "one save": saves_changed(lambda text: text.replace("xxh3_128:", "xxh3_128:0")),
    "one key": lambda root: shutil.rmtree(sorted((root / "data").iterdir())[0]),
    "one phase": lambda root: shutil.rmtree(root / PHASE),
    "half a line": lambda root: (root / PHASE / f"step{STEP}/rank0/records.jsonl").write_text("{"),
}


@pytest.mark.parametrize("what", [*SAME, *OTHER])
def test_what_differs_between_the_runs(recorded, tmp_path, what):
    """A comparison of all records agrees where the bytes do."""
    other = shutil.copytree(recorded, tmp_path / "b")
    {**SAME, **OTHER}[what](other)
    same = wrote_the_same((open_run(recorded), open_run(other)), STEP, 0)
    assert same is (what in SAME)
    assert not same or compare_runs(recorded, other, workers=1).verdict.first_divergence is None


@pytest.mark.parametrize("members", [{"error": "no memory"}, {"fingerprint": None}])
def test_what_is_not_known_of_both_is_not_the_same(recorded, tmp_path, members):
    sides = [shutil.copytree(recorded, tmp_path / name) for name in "ab"]
    for side in sides:
        of_a_tensor(**members)(side)
    assert not wrote_the_same(tuple(map(open_run, sides)), STEP, 0)
