"""What the tests share: quiet frameworks, probes that are closed, and one real small Llama."""

import copy
import ctypes
import fcntl
import gc
import itertools
import json
import logging
import os
import random
import re
import subprocess
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.command_line import CommandLine
from helpers.programs import ALL_LAYERS, TESTS
from hypothesis import HealthCheck, settings

# Both frameworks read these while they are imported, so they are set before any test module loads.
os.environ["GLOG_v"] = "3"  # noqa: SIM112
_LOGS = tempfile.TemporaryDirectory(prefix="msprobe_tests_")
os.environ.setdefault("LOG_MF_PATH", os.path.join(_LOGS.name, "mindformers"))

from mindrlhf_msprobe import Probe, open_run
from mindrlhf_msprobe.common.current import CURRENT
from mindrlhf_msprobe.demo.command import quiet_frameworks
from mindrlhf_msprobe.storage.reading.reader import Run

quiet_frameworks(_LOGS.name)


#: What is drawn at random in the tests follows from it; a run under xdist has one for all workers.
SEED = int(os.environ.setdefault("MSPROBE_TEST_SEED", str(random.randrange(2**32))))
REPEAT = f"MSPROBE_TEST_SEED={SEED}"


#: Folders with the longest files. They come first: a file is one worker's, and one that took two
#: minutes at the end would be waited for.
LONGEST = (
    *("docs", "proof", "promises/ranks", "integrations", "demo", "capture/graph"),
    "comparison/engine",
)


#: How many descriptors a file may leave open: tests of killed runs leave some for each run.
MAX_LEFT_OPEN = 50


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Let hypothesis draw from the seed, unless it is given one of its own.

    Let xdist hand out files in their order here: by itself, those with the fewest tests are last.
    """
    if getattr(config.option, "hypothesis_seed", None) is None:
        config.option.hypothesis_seed = SEED
    config.option.loadscopereorder = False
    # How long an example takes says how busy the machine is.
    settings.register_profile(
        "patient", deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("patient")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first."""
    first = [TESTS / folder for folder in LONGEST]
    assert all(folder.is_dir() for folder in first), f"conftest.LONGEST: {LONGEST}"
    items.sort(key=lambda item: not any(folder in item.path.parents for folder in first))


def pytest_report_header() -> str:
    return f"random numbers: {REPEAT} draws the same ones"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """Show the seed with every failure."""
    report = yield
    if report.failed:
        report.sections.append(("random numbers", f"{REPEAT} draws the same ones"))
    return report


@pytest.fixture(autouse=True, scope="module")
def _spared_from_collections() -> Iterator[None]:
    """Leave what lives longer than a file, tests and frameworks, to no collection of garbage.

    MindSpore collects garbage whenever it has compiled a graph; with 450 000 objects of tests that
    wait to run, that took longer than compiling. What a file leaves open all the same would be
    open until the last test, and a process may have no more than 1024 files: it fails.
    """
    gc.collect()
    gc.freeze()
    before = _open_files()
    yield
    gc.collect()
    left = _open_files() - before
    assert left.total() <= MAX_LEFT_OPEN, left.most_common(MAX_LEFT_OPEN)


def _open_files() -> Counter[str]:
    """Return what the open descriptors of this process lead to; nothing where that is not known."""
    found: Counter[str] = Counter()
    for descriptor in Path("/proc/self/fd").glob("*"):
        with suppress(OSError):
            found[os.readlink(descriptor)] += 1
    return found


@pytest.fixture(autouse=True)
def _subnormal_numbers() -> None:
    """Let subnormal numbers be numbers: some library of an earlier test may take them for 0."""
    with suppress(OSError, AttributeError):  # no glibc
        ctypes.CDLL("libm.so.6").fesetenv(ctypes.c_void_p(-1))  # FE_DFL_ENV


@pytest.fixture(scope="module")
def _directories(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Iterator[int]]:
    """Return where the tests of a file have their directories, and numbers for them."""
    return tmp_path_factory.mktemp("file"), itertools.count()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, _directories: tuple[Path, Iterator[int]]) -> Path:
    """Return a directory of the test's own; all are removed together, once all tests have passed.

    pytest's own is removed right behind its test. For minutes after files were removed ext4 is slow
    to make others: tests that copy runs took four times as long.
    """
    root, numbers = _directories
    name = re.sub(r"\W", "_", request.node.name)[:30]
    path = root / f"{name}{next(numbers)}"
    path.mkdir()
    return path


@pytest.fixture(autouse=True)
def _seeded(request: pytest.FixtureRequest) -> None:
    """Seed Python's and numpy's generators, whatever ran before.

    MindSpore's initialisers draw from numpy's.
    """
    own = zlib.crc32(f"{SEED} {request.node.name}".encode())
    random.seed(own)
    np.random.seed(own)


@pytest.fixture(autouse=True)
def _no_graphs_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what graphs of earlier tests cannot save: the next probe would warn of it."""
    monkeypatch.setattr(CURRENT, "compiled_without", set())


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep a launcher's settings out of the tests."""
    launched = ("RANK_ID", "RANK", "RANK_SIZE")
    msrun = ("MS_ROLE", "MS_WORKER_NUM", "MS_SCHED_HOST", "MS_SCHED_PORT")
    mpi = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    for name in (*launched, *msrun, *mpi, "MSPROBE_LOG_LEVEL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True, scope="module")
def _no_probe_left() -> Iterator[None]:
    """Fail a file that leaves a probe recording: what runs behind it would meet that probe."""
    yield
    probe_module = sys.modules.get("mindrlhf_msprobe.probe")
    left = probe_module.recording_probes() if probe_module else []
    for probe in left:
        probe.close()
    assert not left, [probe.config.dump_path for probe in left]


@pytest.fixture
def make_probe(tmp_path: Path) -> Iterator[Callable[..., Probe]]:
    """Return a function that makes a switched-on probe; it is closed after the test."""
    made: list[Probe] = []

    def make(**settings: Any) -> Probe:
        settings = {"msprobe": True, "dump_path": str(tmp_path / "run"), **settings}
        probe = Probe.from_config(settings)
        made.append(probe)
        return probe

    yield make
    for probe in made:
        probe.close()


@pytest.fixture
def layer_probe(make_probe: Callable[..., Probe]) -> Callable[..., Probe]:
    """Return a function that makes a probe with every layer switch on, for the first ten steps."""

    def make(**settings: Any) -> Probe:
        return make_probe(**{**ALL_LAYERS, "step_end": 9, "token_range_end": 99, **settings})

    return make


@pytest.fixture
def watched(layer_probe: Callable[..., Probe]) -> Callable[..., tuple[Probe, Any]]:
    """Return a function that makes such a probe, with a network as the actor, and returns both."""

    def make(network: Any, **settings: Any) -> tuple[Probe, Any]:
        probe = layer_probe(**settings)
        probe.watch(actor=network)
        return probe, network

    return make


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[[Probe], Run]:
    """Return a function that ends a probe's run and opens what it wrote."""

    def end_and_open(probe: Probe) -> Run:
        probe.close()
        return open_run(probe.config.dump_path)

    return end_and_open


@pytest.fixture
def older_tools(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give a test what the older tools keep for the whole process as a fresh process has it."""
    from mindrlhf_msprobe import MsProbe, PrecisionDebugger, SingleSave
    from mindrlhf_msprobe.probe import recording_probes

    monkeypatch.setattr(SingleSave, "_made", {})
    monkeypatch.setattr(SingleSave, "_current", None)
    monkeypatch.setattr(PrecisionDebugger, "_instance", None)
    for name in ("config", "_shared"):
        monkeypatch.setattr(MsProbe, name, None)
    monkeypatch.setattr(MsProbe, "enabled", False)
    yield
    for probe in recording_probes():
        probe.close()


@pytest.fixture
def warnings_of(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return a function that returns the warnings logged so far, without the rank before them."""

    def collect() -> list[str]:
        return [
            record.getMessage().removeprefix("[rank 0] ")
            for record in caplog.records
            if record.name == "mindrlhf_msprobe" and record.levelno >= logging.WARNING
        ]

    return collect


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Return a function that runs a command here, and returns what it said (`out` and `err`).

    It must answer with the exit code `code`, and never with a traceback.
    """
    from mindrlhf_msprobe.cli import main

    def run(*arguments: Any, code: int = 0) -> Any:
        capsys.readouterr()
        try:
            answer = main([*map(str, arguments)])
        except SystemExit as end:  # argparse's
            answer = end.code
        said = capsys.readouterr()
        assert answer == code, said
        assert "Traceback" not in said.err
        return said

    return run


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Run `mindrlhf-msprobe demo --output demo_out` once; return demo_out and what it said.

    The worker of pytest-xdist that needs it first does, for all.
    """
    pytest.importorskip("mindformers")
    own = tmp_path_factory.getbasetemp()
    directory = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "demo"
    output, said = directory / "demo_out", directory.with_suffix(".json")
    command = [sys.executable, "-m", "mindrlhf_msprobe", "demo", "--output", output.name]
    with open(directory.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not said.exists():
            directory.mkdir()
            done = subprocess.run(
                command, capture_output=True, text=True, cwd=directory, timeout=300
            )
            said.write_text(json.dumps([done.returncode, done.stdout, done.stderr]))
    return output, subprocess.CompletedProcess(command, *json.loads(said.read_text()))


@pytest.fixture(scope="module")
def command_line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """Return the command line in a process that has imported MindSpore once."""
    with closing(CommandLine(tmp_path_factory.mktemp("said"))) as line:
        yield line


@pytest.fixture(scope="session")
def llama_sizes() -> dict[str, int]:
    """Return the sizes of the smallest Llama that has everything a big one has."""
    return {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "multiple_of": 8}


@pytest.fixture(scope="session")
def build_llama(llama_sizes: dict[str, int]) -> Callable[[], Any]:
    """Return a function that builds the same small LlamaForCausalLM every time."""
    pytest.importorskip("mindformers")
    from mindrlhf_msprobe.demo.networks import build_networks

    def build() -> Any:
        sizes = copy.deepcopy(llama_sizes)
        return build_networks(sizes, sizes, vocab_size=17, seq_length=8, seed=5)["actor"]

    return build


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the jobs of which a process of MindSpore crashed at exit, all ranks being done."""
    crashed = getattr(sys.modules.get("jobs"), "CRASHED_AT_EXIT", ())
    if crashed:
        terminalreporter.write_line(
            f"{len(crashed)} job(s) under msrun crashed in MindSpore at exit (SIGSEGV in "
            f"ClusterContext::Finalize) after all ranks were done: {', '.join(crashed)}"
        )
