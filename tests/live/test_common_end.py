"""All ranks end after the same step, whatever they wait for: none is left in a collective."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
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


def together(kind, root, size, *, every=1, found_at=None, registered=None, options=None):
    """Let ranks train until they end, and return them."""
    barrier = threading.Barrier(size)
    ranks = [
        kind(
            *(root, rank, registered or size),
            barrier=barrier,
            every=every,
            found_at=(found_at or {}).get(rank),
            pace=random.choice((0.001, 0.004)),
            **(options or {}).get(rank, {}),
        )
        for rank in range(size)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(20)
    left = [rank.is_alive() for rank in ranks]
    barrier.abort()
    assert not any(left), "a rank waits in a collective"
    return ranks


train = partial(together, Rank)


def last_at(step, *meetings):
    """Return what each rank is told at the end of a step; all of them ask at once."""
    found = {}
    threads = [
        threading.Thread(target=lambda one=one: found.update({one: one.is_last(step)}), daemon=True)
        for one in meetings
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    return [found.get(one) for one in meetings]


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
    assert last_at(4, first, second) == [True, True]


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
    assert last_at(2, *ranks) == [False, False]


class MeetingRank(Rank):
    """A rank that meets the others at the end of each step."""

    def __init__(self, root, rank, size, *, late=None, gone=None, **options):
        super().__init__(root, rank, size, **options)
        self.meeting = CommonEnd(root, rank, size, meets=True)
        self.late, self.gone = late, gone
        self.apart_at = None

    def run(self):
        ends = False
        while self.ended < STEPS and not ends:
            if self.ended == self.gone:
                return self.meeting.leave(ending=False)
            time.sleep(0.2 if self.ended == self.late else self.pace * random.random())
            if self.ended % self.every == self.every - 1:
                self.barrier.wait()
            self.ended += 1
            ends = self.end_step()
        self.meeting.leave(ending=ends)
        return None

    def end_step(self):
        found = self.found_at is not None and self.ended > self.found_at
        if self.meeting.meets:
            ends = self.meeting.meet(self.ended, ends=found)
            if self.meeting.meets:
                return ends
            self.apart_at = self.ended
        if found:
            self.missing = self.missing or self.meeting.publish(self.ended)
        return self.meeting.is_last(self.ended)


meet = partial(together, MeetingRank)


@pytest.fixture
def patient(monkeypatch):
    """No rank of these is late because this machine is busy."""
    monkeypatch.setattr(common_end, "_PATIENCE", 15.0)


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_that_meet_end_in_the_step_itself(tmp_path, patient, size):
    for number, finders in enumerate(({0: 7}, {1: 0}, {0: 9, 1: 8}, {1: 5, size - 1: 5})):
        root = tmp_path / str(number)
        ranks = meet(root, size, every=random.choice((1, 3, STEPS)), found_at=finders)
        assert {rank.ended for rank in ranks} == {min(finders.values()) + 1}
        assert list(root.iterdir()) == []


def test_ranks_that_meet_and_find_nothing_train_to_their_end(tmp_path, patient):
    """One that ends earlier is not waited for."""
    ranks = meet(tmp_path, 3, every=STEPS + 1, options={2: {"gone": 9}})
    assert [rank.ended for rank in ranks] == [STEPS, STEPS, 9]
    assert {rank.apart_at for rank in ranks} == {None}
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_is_late_is_waited_for_once_and_stops_nobody(tmp_path):
    """From then on they end as without meeting: after the same step, a step later."""
    for number, found in enumerate((None, 20)):
        root = tmp_path / str(number)
        options = {1: {"late": 5}}
        ranks = meet(root, 2, every=10, found_at={0: found}, options=options)
        assert None not in {rank.apart_at for rank in ranks}
        ended = {rank.ended for rank in ranks}
        assert len(ended) == 1
        assert ended == {STEPS} if found is None else found + 2 <= ended.pop() < STEPS
        assert list(root.iterdir()) == []


def test_a_rank_that_never_comes_to_the_meeting_stops_nobody(tmp_path):
    """It was killed, or trains elsewhere; what an earlier attempt said there is not its answer."""
    for number, killed in enumerate((False, True)):
        root = tmp_path / str(number)
        if killed:
            CommonEnd(root, 1, 2, meets=True)
        (rank,) = meet(root, 1)
        assert rank.ended == STEPS
        alone = CommonEnd(root, 0, 2, meets=True)
        assert alone.meet(1, ends=True) is False
        assert not alone.meets


def test_a_job_meets_although_a_killed_attempt_has_left_its_files(tmp_path, patient):
    """Its ranks had met, and had decided to end after step 7."""
    program = """
import sys, threading, time
from pathlib import Path
from mindrlhf_msprobe.live.common_end import CommonEnd
for one in [CommonEnd(Path(sys.argv[1]), rank, 2, meets=True) for rank in (0, 1)]:
    threading.Thread(target=one.meet, args=(7,), kwargs={"ends": True}).start()
time.sleep(60)
"""
    said = {"last_step", "rank0", "rank1", "met.rank0", "met.rank1"}
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)]) as killed:
        while not (left := {path.name for path in tmp_path.glob("*/*")} - said):
            assert killed.poll() is None
            time.sleep(0.01)
        killed.kill()
    assert [*map(len, left)] == [len("met.") + 12]  # what they decided
    ranks = meet(tmp_path, 2, found_at={0: 3})
    assert [rank.ended for rank in ranks] == [4, 4]
