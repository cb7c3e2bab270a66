"""Temporary folders of graphs: those that killed processes left go, and no others."""

import os
import signal
import subprocess
import sys
import tempfile

import pytest

from mindrlhf_msprobe.storage.writing.graph_files import make_temporary

JOB = """
import sys, time
from mindrlhf_msprobe.storage.writing.graph_files import make_temporary
folder = make_temporary()
(folder / "tensor.3_float32_17.npy").write_bytes(b"cut sho")
print(folder, flush=True)
time.sleep(600)
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def job(temporary):
    """Return a function that starts a process with a folder: process and folder."""
    started = []

    def start():
        environment = {**os.environ, "TMPDIR": str(temporary)}
        line = [sys.executable, "-c", JOB]
        process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=environment)
        started.append(process)
        return process, process.stdout.readline().strip()

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def made_old(folder):
    os.utime(folder, (1, 1))


def test_what_a_killed_process_left_is_removed_by_the_next(temporary, job):
    (killed, left), (_, lives) = job(), job()
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    foreign = temporary / "mindrlhf_msprobe_graph_files_of_mine"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("nothing of ours")
    behind = temporary / "mindrlhf_msprobe_graph_files_link"
    behind.symlink_to(foreign)
    for folder in (left, lives, foreign):
        made_old(folder)
    own = make_temporary()
    assert not os.path.exists(left)
    assert os.listdir(lives) == ["tensor.3_float32_17.npy"]
    assert (foreign / "thesis.tex").exists()
    assert behind.is_symlink()
    assert own.is_dir()


def test_a_folder_that_was_just_made_is_left(temporary, job):
    """Its process may be about to lock it."""
    killed, left = job()
    killed.kill()
    killed.wait()
    make_temporary()
    assert os.path.exists(left)
    made_old(left)
    make_temporary()
    assert not os.path.exists(left)
