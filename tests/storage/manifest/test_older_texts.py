"""What an older run.json says in words is read as codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.runs import Recording
from report.messages.test_messages import filling, texts

from mindrlhf_msprobe import compare_runs, open_run
from mindrlhf_msprobe.common.message import Message, in_words, message
from mindrlhf_msprobe.storage.manifest.merge import merge_runs
from mindrlhf_msprobe.storage.manifest.older_texts import kind_lost

#: Two runs of the version before coverage had codes, the one as a graph with `to_float`.
OLDER = Path(__file__).parents[2] / "helpers/data/older"

CHINESE = [
    "rank 0 丢失 2 条记录：张量：MemoryError",
    "rank 0 丢失 1 条记录：actor 的优化器：TypeError",
    "rank 0 丢失 1 条记录：已编译网络的 Cell：RuntimeError",
    "rank 0 丢失 1 条记录：关键数据 loss：dump_path 已丢失",
    "rank 0 丢失 3 条记录：data/loss 中的 step：目录被删除",
    "rank 0 丢失 1 条记录：numpy 随机数生成器的状态：ValueError",
    "rank 0 丢失 1 条记录：run.json：OSError",
    "rank 0 丢失 1 条记录：a thing of which no version knows：OSError",
]


def test_what_an_older_run_lost_is_said_in_both_languages() -> None:
    """In English as the file says it, in Chinese where the words are known."""
    run = open_run(OLDER / "graph")
    assert [in_words(loss, "zh") for loss in run.losses] == CHINESE
    lost = run.run_files[0].lost
    assert [in_words(loss, "en") for loss in run.losses] == [
        f"rank 0 lost {count} record(s): {kind}" for kind, count in lost.items()
    ]
    tensor = message("lost.kind", what=message("lost.tensor"), why="MemoryError")
    assert run.losses[0].params["what"] == tensor


@pytest.mark.parametrize(
    ("language", "said"),
    [
        ("en", "its gradients, and the dtype its inputs had before: to_float casts them"),
        ("zh", "缺梯度，也缺输入转换前的 dtype：to_float 会转换输入"),
    ],
)
def test_an_older_run_is_compared_as_ever(language: str, said: str) -> None:
    """Its reasons decide: what was cast before it was recorded is coverage, no difference."""
    result = compare_runs(OLDER / "eager", OLDER / "graph", lang=language)
    assert bool(result)
    (gap,) = result.verdict.coverage
    assert gap.reason.endswith(said)
    kept = open_run(OLDER / "graph").coverage()["graph_mode"]["actor"]
    assert kept["y"] == (message("coverage.dynamic_shape"),)
    assert in_words(kept["z"][0], language) == "of a trainer's own"


@pytest.mark.parametrize("name", sorted(texts("en", "lost")))
def test_the_words_of_each_kind_are_read_as_its_code(name: str) -> None:
    """So that English words which change, or fit two codes, do not pass unseen."""
    what = Message(f"lost.{name}", filling(texts("en", "lost")[name]))
    words = in_words(message("lost.kind", what=what, why="OSError"), "en")
    read = kind_lost(words)
    assert in_words(read, "en") == words
    if name not in ("records", "kind", "manifest"):
        assert read == message("lost.kind", what=what, why="OSError")


def test_counts_of_an_older_and_a_newer_attempt_are_put_together(tmp_path: Path) -> None:
    """`merge` adds what each lost, whether its kind has a code or words alone."""
    tensor = message("lost.kind", what=message("lost.tensor"), why="OSError")
    parts = [tmp_path / "first", tmp_path / "later"]
    for step, part in enumerate(parts):
        recording = Recording(part, step=step)
        recording.data("loss", 1.0)
        recording.end_step()
        recording.writer.close(lost={tensor: 2})
    path = parts[0] / "run.json"
    content = json.loads(path.read_text())
    del content["lost_codes"]
    path.write_text(json.dumps(content))
    merge_runs(parts, tmp_path / "both")
    (file,) = open_run(tmp_path / "both").run_files
    assert file.lost == {"a tensor: OSError": 4}
    assert file.losses == [(tensor, 4)]


def test_what_an_earlier_attempt_lost_stays_counted_when_a_run_is_resumed(tmp_path: Path) -> None:
    """Its steps stay in the run: what is missing of them is said of the whole."""
    tensor, entry = (
        message("lost.kind", what=message(f"lost.{n}"), why="E") for n in ("tensor", "entry")
    )
    for existing, step, lost in (
        ("refuse", 0, {tensor: 2}),
        ("resume", 1, {tensor: 1, entry: 3}),
        ("resume", 2, {}),
    ):
        recording = Recording(tmp_path / "run", existing=existing, step=step)
        recording.data("loss", 1.0)
        recording.writer.end_step(step, lost)
        recording.writer.close(lost=lost)
    (file,) = open_run(tmp_path / "run").run_files
    assert file.losses == [(tensor, 3), (entry, 3)]
