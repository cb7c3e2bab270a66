"""All ranks end after the same step, whatever they wait for: none is left in a collective."""

from __future__ import annotations

import os
import random
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from mindrlhf_msprobe.live import common_end
from mindrlhf_msprobe.live.common_end import CommonEnd

STEPS = 60


class Rank(threading.Thread):
    """One rank: its steps take their time, and some of them have a collective."""

    def __init__(self, root, rank, size, *, barrier, every, found_at, pace):
        super().__init__(daemon=True)
        self.meeting = CommonEnd(root, rank, size)
        self.barrier, self.every, self.found_at, self.pace = barrier, every, found_at, pace
        self.ended = 0
        self.missing: list[int] = []

    def run(self):
        ends = False
        while self.ended < STEPS and not ends:
            time.sleep(self.pace * random.random())
            if self.ended % self.every == self.every - 1:
                self.barrier.wait()
            self.ended += 1
            if self.found_at is not None and self.ended > self.found_at:
                self.missing = self.missing or self.meeting.publish(self.ended)
            ends = self.meeting.is_last(self.ended)
        self.meeting.leave(ending=ends)


def train(root, size, *, every, found_at, registered=None):
    """Let ranks train until they end; return after how many steps each did."""
    barrier = threading.Barrier(size)
    ranks = [
        Rank(root, rank, registered or size, barrier=barrier, every=every,
             found_at=found_at.get(rank), pace=random.choice((0.001, 0.004)))
        for rank in range(size)
    ]  # fmt: skip
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(20)
    left = [rank.is_alive() for rank in ranks]
    barrier.abort()
    assert not any(left), "a rank waits in a collective"
    return ranks


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(common_end, "_PATIENCE", 0.05)
    monkeypatch.setattr(common_end, "_LOOK", 0.001)


@pytest.mark.parametrize("every", [1, 2, 5])
@pytest.mark.parametrize("size", [2, 4])
def test_every_rank_ends_after_the_same_step(tmp_path, size, every):
    """One finds something, or two at once, where they wait for each other rarely, too."""
    for number, finders in enumerate(({0: 7}, {1: 7}, {0: 6, 1: 7})):
        root = tmp_path / str(number)
        ranks = train(root, size, every=every, found_at=finders)
        ended = {rank.ended for rank in ranks}
        assert len(ended) == 1
        assert min(finders.values()) + 2 <= ended.pop() < STEPS
        assert list(root.iterdir()) == []


def test_a_rank_that_takes_no_part_stops_nobody(tmp_path):
    """It is named, and all go on to their end."""
    ranks = train(tmp_path, 2, every=1, found_at={0: 3}, registered=3)
    assert [rank.ended for rank in ranks] == [STEPS, STEPS]
    assert [rank.missing for rank in ranks] == [[2], []]


def test_what_an_earlier_attempt_left_stops_nobody(tmp_path):
    """A killed job leaves its last step there; the next one goes on beyond it."""
    killed = [CommonEnd(tmp_path, rank, 2) for rank in (0, 1)]
    assert killed[0].publish(2) == []
    assert killed[1].is_last(2) is False
    ranks = train(tmp_path, 2, every=1, found_at={})
    assert [rank.ended for rank in ranks] == [STEPS, STEPS]
    assert list(tmp_path.iterdir()) == []
    again = train(tmp_path, 2, every=1, found_at={1: 9})
    assert len({rank.ended for rank in again} - {STEPS}) == 1


@pytest.mark.parametrize("left", [False, True])
def test_a_rank_that_begins_later_than_anothers_finding_is_not_left(tmp_path, left):
    """What a killed process of an earlier attempt said there is not taken for its answer."""
    killed = CommonEnd(tmp_path, 1, 2)
    killed._say(2, left=left)
    first = CommonEnd(tmp_path, 0, 2)
    assert first.publish(1) == []
    assert [first.is_last(ended) for ended in (1, 2)] == [False, False]
    second = CommonEnd(tmp_path, 1, 2)
    assert [first.is_last(3), second.is_last(1), second.is_last(2)] == [False, False, False]
    assert first.publish(3) == []
    assert [first.is_last(3), second.is_last(3)] == [False, False]
    ends = {}
    both = [
        threading.Thread(target=lambda one=one: ends.update({one: one.is_last(4)}))
        for one in (first, second)
    ]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join(5)
    assert ends == {first: True, second: True}


def test_what_is_not_its_own_stays(tmp_path):
    """A directory of that name may be somebody's, or a link to one."""
    for name, made in (("linked", Path.symlink_to), ("own", lambda path, _: path.mkdir())):
        root, elsewhere = tmp_path / name, tmp_path / f"of {name}"
        root.mkdir()
        elsewhere.mkdir()
        made(root / ".live", elsewhere)
        (root / ".live/notes").write_text("mine")
        with suppress(NotADirectoryError):
            CommonEnd(root, 0, 2).leave(ending=False)
        assert [path.name for path in (root / ".live").iterdir()] == ["notes"]


@pytest.mark.parametrize("name", ["last_step", "rank0"])
def test_a_pipe_there_is_an_error(tmp_path, name):
    """To open it would wait for ever."""
    (tmp_path / ".live").mkdir()
    os.mkfifo(tmp_path / ".live" / name)
    with pytest.raises(OSError, match=name):
        CommonEnd(tmp_path, 0, 2)


@pytest.mark.parametrize("content", [b"", b'{"end": ', b"[]", b'{"to": 1}', None])
def test_a_decision_that_nobody_could_write_stops_no_rank(tmp_path, monkeypatch, content):
    """The disk was full, say: all ranks go on."""
    monkeypatch.setattr(common_end, "_UNREAD", 0.05)
    ranks = [CommonEnd(tmp_path, rank, 2) for rank in (0, 1)]
    assert ranks[0].publish(1) == []
    assert ranks[0].is_last(1) is False
    decision = tmp_path / ".live" / f"after.{ranks[0]._job}.2"
    decision.symlink_to("nowhere") if content is None else decision.write_bytes(content)
    ends = []
    both = [threading.Thread(target=lambda one=one: ends.append(one.is_last(2))) for one in ranks]
    for thread in both:
        thread.daemon = True
        thread.start()
    for thread in both:
        thread.join(5)
    assert ends == [False, False]
