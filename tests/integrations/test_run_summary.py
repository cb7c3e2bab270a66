"""`mindrlhf-msprobe run` ends by saying what was recorded, or why nothing was."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from drivers.launching import RUN, python

from mindrlhf_msprobe import open_run
from mindrlhf_msprobe.storage.reading.inventory import inventory

pytestmark = pytest.mark.slow

MAIN = Path(__file__).parent / "stand_ins" / "grpo" / "main.py"
SECTION = {"msprobe": True, "dump_path": "my run", "key_data_dump": True, "actor_infer_dump": True}
SAID = "mindrlhf-msprobe run: "

#: A training of one's own; how it ends is its first argument.
OWN = """\
import os, shutil, sys
import numpy as np
from mindspore import Tensor, nn
from mindrlhf_msprobe import Probe

def train(how):
    probe = Probe.from_config({
        "msprobe": True, "dump_path": "run", "key_data_dump": True, "actor_train_dump": True,
        "step_start": 1, "step_end": 2,
    })
    network = nn.Dense(2, 2)
    probe.watch(actor=network)
    for step in range(4):
        with probe.phase("actor_update"):
            network(Tensor(np.ones((1, 2), np.float32)))
            if how == "raise" and step == 2:
                raise ValueError("not today")
        if how == "unsaved":
            probe.save_data("ratio", object())
        if step in (1, 2):
            probe.save_data("loss", 1.5)
        probe.step()
    if how == "closed":
        probe.close()
    if how == "removed":
        shutil.rmtree("run")

if sys.argv[1] == "idle":
    kept = Probe.from_config({"msprobe": True, "dump_path": "run", "actor_train_dump": True})
else:
    train(sys.argv[1])
if sys.argv[1] == "exit":
    sys.exit(7)
if sys.argv[1] == "fork" and os.fork() == 0:
    sys.exit()
if sys.argv[1] == "fork":
    os.wait()
if sys.argv[1] == "no stderr":
    sys.stderr.close()
if sys.argv[1] == "broken":
    import mindrlhf_msprobe.storage.reading.reader as reader
    reader.open_run = None
"""


@pytest.fixture
def own(tmp_path):
    """Return what runs a training of one's own under `run`."""
    (tmp_path / "own.py").write_text(OWN)

    def started(how, **settings):
        return python(*RUN, "own.py", how, cwd=tmp_path, **{"LC_ALL": "C"} | settings)

    return started


def summary_of(stderr):
    """Return the lines from the summary's first one on."""
    lines = stderr.splitlines()
    first = [i for i, line in enumerate(lines) if line.startswith(SAID)]
    assert len(first) == 1, stderr
    return [lines[first[0]].removeprefix(SAID), *map(str.strip, lines[first[0] + 1 :])]


@pytest.mark.parametrize("how", ["end", "closed", "exit", "raise", "fork"])
def test_what_was_recorded_is_said_however_the_script_ends(tmp_path, own, how):
    result = own(how)
    run = open_run(tmp_path / "run")
    size = sum(holding.size for holding in inventory(run)) / 1024
    said = summary_of(result.stderr)
    assert said[0] == f"{tmp_path / 'run'} holds of rank 0: steps 1-2, {size:.1f} KiB"
    assert said[1:4] == ["layers: actor_update", "key data: loss", "No record was lost."]
    assert said[-1] == (
        f"Next: mindrlhf-msprobe check {tmp_path / 'run'}; against another run: "
        f"mindrlhf-msprobe compare BASELINE {tmp_path / 'run'}"
    )
    stopped = [line for line in said if line.startswith("Rank 0 ")]
    expected = {
        "exit": ["Rank 0 stopped in step 4: SystemExit: 7"],
        "raise": ["Rank 0 stopped in step 2, actor_update: ValueError: not today"],
    }
    assert stopped == expected.get(how, [])
    assert result.returncode == {"exit": 7, "raise": 1}.get(how, 0)
    assert ("ValueError: not today\n" in result.stderr) == (how == "raise")


def test_losses_are_said(tmp_path, own):
    result = own("unsaved")
    said = summary_of(result.stderr)
    lost = [str(loss) for loss in open_run(tmp_path / "run").losses]
    assert lost
    assert all(loss in said for loss in lost)
    assert "No record was lost." not in said


def test_a_run_that_holds_nothing_is_said_to(tmp_path, own):
    said = summary_of(own("idle").stderr)
    assert said[0] == f"nothing was recorded in {tmp_path / 'run'} by rank 0."
    assert not any("Next:" in line for line in said)


def test_a_run_that_cannot_be_read_costs_the_script_nothing(tmp_path, own):
    result = own("removed")
    assert result.returncode == 0
    assert "Traceback" not in result.stderr
    assert summary_of(result.stderr)[0].startswith(f"{tmp_path / 'run'} could not be ")


@pytest.mark.parametrize("how", ["no stderr", "broken"])
def test_a_summary_that_fails_costs_the_script_nothing(own, how):
    result = own(how)
    assert result.returncode == 0
    assert "Traceback" not in result.stderr


def test_it_is_a_message_like_the_others(own):
    """In the language that was chosen, and silent with them."""
    assert "rank 0 的采集结果：step 1-2" in own("end", LC_ALL="zh_CN.UTF-8").stderr
    assert SAID not in own("end", MSPROBE_LOG_LEVEL="2").stderr


def configured(tmp_path, **changed):
    section = None if changed.get("none") else SECTION | changed
    content = {"context": {"mode": 1}, **({"msprobe_config": section} if section else {})}
    (tmp_path / "grpo.yaml").write_text(yaml.safe_dump(content))


def test_a_trainer_without_a_line_is_summed_up(tmp_path):
    configured(tmp_path)
    result = python(*RUN, MAIN, "--config", "grpo.yaml", cwd=tmp_path, LC_ALL="C")
    assert result.returncode == 0, result.stderr
    said = summary_of(result.stderr)
    assert said[0].startswith(f"{tmp_path / 'my run'} holds of rank 0: steps 0-3, ")
    assert said[1] == "layers: actor_generate_sequences"
    assert {"loss", "rewards", "log_prob"} < {*said[2].removeprefix("key data: ").split(", ")}
    assert f"mindrlhf-msprobe check '{tmp_path / 'my run'}';" in said[-1]
    # It steps on no terminal here.
    assert "msprobe INFO [rank 0] step 1" not in result.stderr


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"msprobe": False}, "msprobe is false in msprobe_config of MindRLHF's GRPO trainer."),
        ({"ranks": [3, 5]}, "msprobe_config.ranks is 3, 5, without this rank."),
        (
            {"none": True},
            "the configuration of MindRLHF's GRPO trainer has no section msprobe_config.",
        ),
    ],
)
def test_why_nothing_was_recorded_is_said_once(tmp_path, changed, why):
    configured(tmp_path, **changed)
    result = python(*RUN, MAIN, "--config", "grpo.yaml", cwd=tmp_path, LC_ALL="C")
    assert result.returncode == 0
    assert result.stderr.splitlines()[-1] == f"{SAID}nothing was recorded: {why}"
    assert result.stderr.count("nothing was recorded") == 1


def test_a_training_that_never_began_is_said_to(tmp_path):
    result = python(*RUN, MAIN, "--config", "nowhere.yaml", cwd=tmp_path, LC_ALL="C")
    assert result.returncode == 1
    assert "FileNotFoundError" in result.stderr
    assert summary_of(result.stderr) == [
        "nothing was recorded: the script ended before a training of MindRLHF began."
    ]


def test_a_script_with_a_probe_of_its_own_needs_no_trainer(own):
    assert "no trainer" not in own("end").stderr


def test_on_a_terminal_each_step_is_a_line(tmp_path, own):
    ours, theirs = pty.openpty()
    path = os.pathsep.join(p for p in sys.path if p)
    with subprocess.Popen(
        [sys.executable, *RUN, "own.py", "end"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "LC_ALL": "C"},
        stdout=subprocess.PIPE,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 4096):
                shown += part
        except OSError:  # the terminal is gone
            pass
        process.wait(300)
    os.close(ours)
    assert process.returncode == 0
    lines = re.findall(r"\[rank 0\] (step \d: .*?)\r?\n", shown.decode())
    assert [line.split(",")[0] for line in lines if "nothing" in line] == [
        "step 0: nothing recorded",
        "step 3: nothing recorded",
    ]
    recorded = [line for line in lines if "nothing" not in line]
    pattern = r"step [12]: [\d.]+ (B|KiB) recorded, which took \d+\.\d\d s"
    assert len(recorded) == 2
    assert all(re.fullmatch(pattern, line) for line in recorded)
    assert "holds of rank 0: steps 1-2, " in shown.decode()


#: What of mindformers.pynative's Trainer decides whether a training is recorded.
TRAINER = """\
from types import SimpleNamespace


class Trainer:
    def __init__(self, **sections):
        self.config = SimpleNamespace(**sections)
        self.callback_handler = self._create_callback_handler(None, self.config)

    def _create_callback_handler(self, callbacks=None, config=None):
        return SimpleNamespace(callbacks=list(callbacks or ()))

    def train(self):
        pass
"""


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ("msprobe_config={'msprobe': False}", "msprobe is false in msprobe_config of {of}."),
        ("", "the configuration of {of} has no section msprobe_config."),
    ],
)
def test_why_a_trainer_of_mindformers_is_not_recorded(tmp_path, sections, why):
    folder = tmp_path / "mindformers" / "pynative" / "trainer"
    folder.mkdir(parents=True)
    for package in (folder, *folder.parents[:2]):
        (package / "__init__.py").touch()
    (folder / "trainer.py").write_text(TRAINER)
    script = "from mindformers.pynative.trainer.trainer import Trainer\nTrainer({}).train()\n"
    (tmp_path / "train.py").write_text(script.format(sections))
    result = python(*RUN, "train.py", cwd=tmp_path, LC_ALL="C")
    assert result.returncode == 0, result.stderr
    why = why.format(of="MindFormers' Trainer")
    assert summary_of(result.stderr) == [f"nothing was recorded: {why}"]
