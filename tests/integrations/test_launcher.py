"""`mindrlhf-msprobe run script.py …` is `python script.py …` with the integrations in place."""

import os
import signal
import socket
import sys
from pathlib import Path

import pytest
import yaml
from drivers.launching import RUN, python

from mindrlhf_msprobe import open_run

STAND_IN = Path(__file__).parent / "stand_ins" / "grpo"

SCRIPT = '''\
"""A script."""
import inspect, json, os, pickle, signal, sys

class Kept:
    """Found again by pickle, and by inspect."""

def fail():
    raise ValueError("not today")

if __name__ == "__main__":
    import beside
    print(json.dumps([
        sys.argv, sys.path[0], __name__, __file__, __doc__, __spec__ is None, beside.HERE,
        type(pickle.loads(pickle.dumps(Kept()))).__name__, inspect.getsource(Kept)[:10],
        sorted(name for name in globals() if not name.startswith("__")),
        [name for name in ("mindspore", "numpy", "mindrlhf") if name in sys.modules],
    ]), flush=True)
    how = sys.argv[1] if len(sys.argv) > 1 else ""
    if how == "raise":
        fail()
    if how == "exit":
        sys.exit(7)
    if how == "message":
        sys.exit("that was all")
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "oserror":
        open("/nowhere/at/all")
    if how == "hook":
        sys.excepthook = lambda kind, error, trace: print("mine:", error, file=sys.stderr)
        fail()
'''


@pytest.fixture
def script(tmp_path):
    """Return a script, as it is called from the directory above it: through a link."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "script.py").write_text(SCRIPT)
    (tmp_path / "real" / "beside.py").write_text("HERE = 'beside'\n")
    (tmp_path / "linked.py").symlink_to("real/script.py")
    return "linked.py"


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--config", "grpo.yaml", "-1", "--", "-h", "run", "--json"),
        ("raise",),
        ("exit",),
        ("message",),
        ("interrupt",),
        ("oserror",),
        ("hook",),
    ],
)
def test_a_script_notices_nothing(tmp_path, script, arguments):
    plain = python(script, *arguments, cwd=tmp_path)
    launched = python(*RUN, script, *arguments, cwd=tmp_path, MSPROBE_LOG_LEVEL="4")
    assert plain.stdout.startswith('[["linked.py"')
    assert launched.stdout == plain.stdout
    assert launched.returncode == plain.returncode
    assert launched.stderr == plain.stderr
    if arguments == ("interrupt",):
        assert launched.returncode == -signal.SIGINT


@pytest.mark.parametrize("ends", ["", "sys.exit(3)", "raise ValueError(rows)"])
def test_what_the_script_leaves_is_closed_as_under_python(tmp_path, ends):
    (tmp_path / "rows.py").write_text(
        "import os, sys\n"
        "class Rows:\n"
        "    def __del__(self):\n"
        "        os.write(1, b'closed\\n')\n"
        f"rows = Rows()\n{ends}\n"
    )
    plain = python("rows.py", cwd=tmp_path)
    launched = python(*RUN, "rows.py", cwd=tmp_path)
    assert plain.stdout == "closed\n"
    assert launched.stdout == plain.stdout


def test_a_script_that_cannot_be_compiled(tmp_path):
    (tmp_path / "broken.py").write_text("x = (\n")
    plain = python("broken.py", cwd=tmp_path)
    launched = python(*RUN, "broken.py", cwd=tmp_path, MSPROBE_LOG_LEVEL="4")
    assert "SyntaxError" in plain.stderr
    assert (launched.returncode, launched.stderr) == (plain.returncode, plain.stderr)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "the following arguments are required: SCRIPT"),
        (
            ("nowhere.py", "--config", "x"),
            "'nowhere.py' does not exist; expected the Python script",
        ),
        (("real",), "'real' is a directory; expected"),
        (("--json", "linked.py"), "unrecognized arguments: --json"),
    ],
)
def test_what_cannot_be_run_is_said(tmp_path, script, arguments, said):
    result = python(*RUN, *arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_a_script_without_a_trainer_is_told_so(tmp_path, script):
    result = python(*RUN, script, cwd=tmp_path)
    assert result.returncode == 0
    assert "nothing was recorded: no trainer of MindRLHF was imported" in result.stderr


def test_the_log_is_in_the_language_that_was_chosen(tmp_path):
    """Of all threads, and until the process has ended; the script's environment stays."""
    (tmp_path / "main.py").write_text(
        "import os, threading\n"
        "from mindrlhf_msprobe import save\n"
        "from mindrlhf_msprobe.common.current import CURRENT\n"
        "CURRENT.expected = False\n"
        "threading.Thread(target=save, args=('.', 'loss', 1.0)).start()\n"
        "print(os.environ['LC_ALL'])\n"
    )
    for chosen, locale, said in (
        ("zh", "C", ["没有正在采集的 Probe", "没有采集到任何内容"]),
        ("en", "zh_CN.UTF-8", ["no probe records", "nothing was recorded"]),
    ):
        result = python(*RUN, "--lang", chosen, "main.py", cwd=tmp_path, LC_ALL=locale)
        assert result.stdout.strip() == locale
        lines = result.stderr.splitlines()
        assert len(lines) == 2
        assert all(words in line for words, line in zip(said, lines))


def test_a_trainer_under_another_name_is_told_so(tmp_path):
    package = tmp_path / "mindrlhf"
    package.mkdir()
    (package / "__init__.py").write_text("class Trainer: ...\nclass GRPOTrainerV2: ...\n")
    (tmp_path / "main.py").write_text("import mindrlhf\n")
    result = python(*RUN, "main.py", cwd=tmp_path)
    assert result.returncode == 0
    assert "no trainer in <module 'mindrlhf' from" in result.stderr
    assert str(package) in result.stderr
    assert "GRPOTrainer, PPOTrainer" in result.stderr


def test_a_training_is_recorded_without_a_line(tmp_path):
    """The same numbers with and without; the section alone decides what is recorded."""
    section = {"msprobe": True, "dump_path": "run", "key_data_dump": True, "actor_infer_dump": True}
    for name, content in {"off": {}, "on": {"msprobe_config": section}}.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({"context": {"mode": 1}, **content}))
    main = STAND_IN / "main.py"
    plain = python(main, "--config", "off.yaml", cwd=tmp_path)
    off = python(*RUN, main, "--config", "off.yaml", cwd=tmp_path)
    assert not (tmp_path / "run").exists()
    on = python(*RUN, main, "--config=on.yaml", cwd=tmp_path)
    assert plain.returncode == off.returncode == on.returncode == 0, on.stderr
    assert plain.stdout == off.stdout == on.stdout != ""
    run = open_run(tmp_path / "run")
    assert run.finished
    assert run.steps == [0, 1, 2, 3]
    assert run.phases == ["actor_generate_sequences"]


def test_under_msrun_every_rank_records_its_own(tmp_path):
    section = {"msprobe": True, "dump_path": "run", "key_data_dump": True, "reference_dump": True}
    config = {"context": {"mode": 1}, "rl_config": {"epochs": 1}, "msprobe_config": section}
    (tmp_path / "grpo.yaml").write_text(yaml.safe_dump(config))
    command = tmp_path / "mindrlhf-msprobe"  # what pip installs
    command.write_text("import sys\nfrom mindrlhf_msprobe.cli import main\nsys.exit(main())\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = "from mindspore.parallel.cluster.run import main; main()"
    options = ["--worker_num=2", "--local_worker_num=2", f"--master_port={port}", "--join=True"]
    # msrun calls `python`
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    result = python(
        *("-c", program, *options, "--log_dir=logs", command, "run"),
        *(STAND_IN / "main.py", "--config", "grpo.yaml"),
        cwd=tmp_path,
        PATH=path,
    )
    logs = "".join(log.read_text() for log in (tmp_path / "logs").glob("*.log"))
    assert result.returncode == 0, result.stderr + logs
    run = open_run(tmp_path / "run")
    assert run.ranks == [0, 1]
    assert {(e.rank, e.step) for e in run.entries()} == {(0, 0), (1, 0)}
    assert len(run.key_data("loss", rank=1)) == 4


def test_a_file_without_the_section_imports_nothing(tmp_path):
    """Nothing that records: install() and the file cost what a look at the file costs."""
    program = """
import sys
from mindrlhf_msprobe.integrations import mindrlhf
mindrlhf.install()
assert not [name for name in ("mindspore", "numpy", "yaml") if name in sys.modules]
from mindrlhf.configs.grpo_configs import GRPOConfig
GRPOConfig(sys.argv[1])
called = tuple(f"mindrlhf_msprobe.capture.{name}" for name in ("arguments", "words"))
found = [name for name in sys.modules if name.startswith("mindrlhf_msprobe.capture.")]
assert not [name for name in found if not name.startswith(called)]
assert "numpy" not in sys.modules
"""
    (tmp_path / "grpo.yaml").write_text("rl_config: {epochs: 1}\n")
    path = os.pathsep.join([str(STAND_IN), *(p for p in sys.path if p)])
    result = python("-c", program, "grpo.yaml", cwd=tmp_path, PYTHONPATH=path)
    assert result.returncode == 0, result.stderr
