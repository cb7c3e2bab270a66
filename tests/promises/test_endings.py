"""However a process ends or splits, the probe neither hangs nor loses a finished phase."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from mindrlhf_msprobe import open_run

pytestmark = pytest.mark.slow

START = """
import os, signal, sys, threading, time
import numpy as np
from mindrlhf_msprobe import Probe
from mindrlhf_msprobe.storage.writing import writer as storage

section = {"msprobe": True, "key_data_dump": True, "dump_path": sys.argv[1]}
probe = Probe.from_config(section)
assert threading.active_count() == 1, "a thread before there is anything to write"
probe.save_data(loss=1.0)
probe.step()

def slowly(*seen, save=storage.save_npy):
    started.set()
    time.sleep(0.3)
    return save(*seen)

started = threading.Event()
storage.save_npy = slowly
probe.save_data(loss=np.full(9, 2.0))
started.wait()
"""


def ended(tmp_path, script, code=0):
    """Run a training that ends as `script` says and return what it recorded."""
    command = [sys.executable, "-c", START + script, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    return open_run(tmp_path / "run")


def losses(run):
    return [datum.value if datum.step == 0 else datum.value[8] for datum in run.key_data("loss")]


@pytest.mark.parametrize(
    ("script", "code", "state"),
    [
        ("", 0, "interrupted"),
        ("probe.close()", 0, "finished"),
        ("sys.exit(3)", 3, "failed"),
        ("raise LookupError('the training failed')", 1, "failed"),
        ("threading.Thread(target=sys.exit).start()", 0, "interrupted"),
        ("with probe: raise KeyboardInterrupt", -2, "failed"),
    ],
    ids=["no close", "close", "exit", "exception", "exit in a thread", "interrupt"],
)
def test_whatever_ends_the_process_what_was_recorded_is_written(tmp_path, script, code, state):
    """Saves that are still on their way when the process ends reach the disk before it does."""
    run = ended(tmp_path, script, code)
    assert losses(run) == [1.0, 2.0]
    assert run.state == state
    assert run.manifests[0]["attempts"][-1]["unfinished_step"] == 1
    assert run.problems == []


@pytest.mark.parametrize("call", ["step", "close"])
def test_ctrl_c_while_the_probe_waits_loses_nothing(tmp_path, call):
    """The interrupt arrives; the step that was being ended is ended; later steps are their own."""
    run = ended(
        tmp_path,
        f"""
threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    probe.{call}()
except KeyboardInterrupt:
    print("interrupted")
if "{call}" == "step":
    probe.save_data(loss=np.full(9, 3.0))
    probe.step()
""",
    )
    assert losses(run) == ([1.0, 2.0, 3.0] if call == "step" else [1.0, 2.0])
    completed = [step for step in run.steps if run.completed(step)]
    assert completed == ([0, 1, 2] if call == "step" else [0])
    assert run.state == "finished"


@pytest.mark.parametrize("ending", ["os._exit(7)", "sys.exit(7)", "raise SystemExit(7)"])
def test_a_forked_child_leaves_the_run_to_its_parent(tmp_path, ending):
    """A child writes nothing, waits for nothing, and ends nothing; the parent goes on."""
    run = ended(
        tmp_path,
        f"""
child = os.fork()
if child == 0:
    probe.save_data(loss=4.0)
    probe.step()
    with probe.phase("no phase of any kind"):
        pass
    assert not probe.enabled
    probe.close()
    {ending}
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
probe.save_data(loss=np.full(9, 5.0))
probe.close()
""",
    )
    assert losses(run) == [1.0, 2.0, 5.0]
    assert run.finished


def test_strict_raises_what_the_writing_thread_met(tmp_path):
    """With strict: true a fault behind the training's back is raised by the probe's next call."""
    run = ended(
        tmp_path,
        """
strict = Probe.from_config({**section, "dump_path": sys.argv[1] + "_strict", "strict": True})
def full(*_):
    raise OSError(28, "No space left on device")
storage.save_npy = full
try:
    strict.save_data(loss=1.0)
    strict.step()
except OSError as error:
    assert "No space" in str(error)
else:
    raise AssertionError("nothing was raised")
strict.step()
probe.close()
""",
    )
    assert run.finished
    lost = json.loads((tmp_path / "run_strict/run.json").read_bytes())["lost"]
    assert lost == {"key data loss: OSError": 1}


PHASES = """
probe.close()
settings = {**section, "existing": "overwrite"}
probe = Probe.from_config(settings)

def phase(name="actor_update"):
    with probe.phase(name):
        pass

phase()
probe.step()
phase("actor_compute_log_prob")
def fails(error=ValueError("bad batch\\x1b[31m")):
    with probe.phase("actor_update"):
        raise error
def in_thread(script):
    thread = threading.Thread(target=exec, args=(script, globals()))
    thread.start()
    thread.join()
def caught(*given):
    try:
        fails(*given)
    except BaseException:
        pass
"""


def test_what_was_there_before_is_called_and_comes_back(tmp_path):
    """A hook of the trainer's own is told of a thread that dies; after close() it stands there."""
    run = ended(
        tmp_path,
        """
import builtins
probe.close()
told, own_exit = [], sys.exit
threading.excepthook = own = lambda args: told.append(args.exc_type)
first, second = (Probe.from_config({**section, "dump_path": sys.argv[1] + n}) for n in "12")
def dies():
    first.save_data(loss=1.0)
    raise LookupError
thread = threading.Thread(target=dies)
thread.start()
thread.join()
assert told == [LookupError]
first.close()
assert threading.excepthook is not own
second.close()
assert threading.excepthook is own and sys.exit is own_exit
""",
    )
    assert run.finished
    assert open_run(tmp_path / "run1").stops[0].error == "LookupError"
    assert open_run(tmp_path / "run2").finished


def stopped(tmp_path, script, code=0):
    """Return the state of a run with phases that ends as `script` says, and what it says of it."""
    run = ended(tmp_path, PHASES + script, code)
    manifest = run.manifests[0]
    attempt = manifest["attempts"][-1]
    assert (attempt["state"], attempt.get("stopped")) == (
        manifest["state"],
        manifest.get("stopped"),
    )
    assert attempt["last_completed_step"] in (0, 1, 2)
    said = manifest.get("stopped")
    return manifest["state"], said and tuple(said.values())


#: What goes on, or says itself that it is done: such a run is finished.
FINISHED = [
    "probe.close()",
    "phase()\nprobe.step()",
    "probe.step(); sys.exit(0)",
    "try:\n    sys.exit(3)\nexcept SystemExit:\n    pass\nprobe.close()",
    "try:\n    sys.exit(3)\nexcept SystemExit:\n    phase()\nprobe.step()",
    "try:\n    sys.exit(3)\nexcept SystemExit:\n    probe.save_data(x=1)\nprobe.step()",
    "in_thread('int(\"x\")'); probe.step()",  # it did not train
    "in_thread('phase(); probe.step(); 1/0'); phase(); probe.step()",
    "caught(); phase(); probe.step(); probe.close()",
    "caught(); phase(); probe.close()",
    "caught(StopIteration()); probe.close()",
    "try:\n    raise ImportError\nexcept ImportError:\n    probe.close()\n"
    "    probe = Probe.from_config(settings)\n    phase()\n    probe.step()\n"
    "    phase()\n    probe.close()",
]
#: What ends without a word: step, phase and error that run.json names.
INTERRUPTED = [
    ("phase()", (1, None, None, "")),
    ("sys.exit(0)", (1, None, None, "")),
    ("fails(SystemExit())", (1, "actor_update", "SystemExit", "")),
    ("caught(StopIteration()); phase()", (1, None, None, "")),
    ("with probe:\n    sys.exit(0)", (1, None, None, "")),
    ("context = probe.phase('actor_update').__enter__()", (1, "actor_update", None, "")),
]
#: What fails: the exit code too; of a text that is None, any will do.
FAILED = [
    ("fails()", 1, (1, "actor_update", "ValueError", "bad batch\x1b[31m")),
    ("os.write(1, b''); sys.exit(3)", 3, (1, None, "SystemExit", "3")),
    ("probe.step(); sys.exit('no')", 1, (2, None, "SystemExit", "no")),
    ("in_thread('phase(); probe.step(); int(\"x\")')", 0, (2, None, "ValueError", None)),
    ("in_thread('phase(); sys.exit(7)')", 0, (1, None, "SystemExit", "7")),
    ("in_thread('fails()')", 0, (1, "actor_update", "ValueError", None)),
    (
        "in_thread('phase(); probe.step(); 1/0'); probe.close()",
        *(0, (2, None, "ZeroDivisionError", None)),
    ),
    ("fails(SystemExit(3))", 3, (1, "actor_update", "SystemExit", "3")),
    ("probe.step(); raise KeyError('x')", 1, (2, None, "KeyError", "'x'")),
    ("caught(); probe.close()", 0, (1, "actor_update", "ValueError", None)),
    ("fails(StopIteration())", 1, (1, "actor_update", "StopIteration", "")),
    ("next(iter(()))", 1, (1, None, "StopIteration", "")),
    (
        "try:\n    fails()\nfinally:\n    probe.close()",
        *(1, (1, "actor_update", "ValueError", None)),
    ),
    (
        "try:\n    fails()\nexcept ValueError as e:\n    raise RuntimeError('up') from e",
        *(1, (1, "actor_update", "RuntimeError", "up (ValueError: bad batch\x1b[31m)")),
    ),
    (
        "with probe:\n    phase()\n    raise KeyboardInterrupt",
        *(-2, (1, None, "KeyboardInterrupt", "")),
    ),
    (
        "fails(OSError('https://u:pw12345@host/x'))",
        *(1, (1, "actor_update", "OSError", "<withheld: it could be a secret>")),
    ),
    ("fails(ValueError('x ' * 9999))", 1, (1, "actor_update", "ValueError", "x " * 100 + "…")),
]


@pytest.mark.parametrize(
    ("script", "code", "state", "said"),
    [
        *((script, 0, "finished", None) for script in FINISHED),
        *((script, 0, "interrupted", said) for script, said in INTERRUPTED),
        *((script, code, "failed", said) for script, code, said in FAILED),
    ],
)
def test_run_json_says_where_and_of_what_a_training_ended(tmp_path, script, code, state, said):
    """State, step, phase, type and text of the error; what was caught and gone on from is none."""
    found_state, found = stopped(tmp_path, script, code)
    if said is not None and said[-1] is None:
        assert found is not None
        found = (*found[:-1], None)
    assert (found_state, found) == (state, said)
