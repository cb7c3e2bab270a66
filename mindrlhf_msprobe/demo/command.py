"""mindrlhf-msprobe demo: train twice, plant an error in the second run, find it."""

from __future__ import annotations

import argparse
import logging
import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindrlhf_msprobe.common.message import Messages, message
from mindrlhf_msprobe.common.yaml_file import read_yaml
from mindrlhf_msprobe.config import SECTION, ProbeConfig, load_config
from mindrlhf_msprobe.errors import UNDECIDED, RunError, UsageError, nearest_of
from mindrlhf_msprobe.findings import Comparison, Outcome
from mindrlhf_msprobe.log import logger as probe_logger
from mindrlhf_msprobe.phases import GENERATE, Phase, phase_table
from mindrlhf_msprobe.probe import Probe
from mindrlhf_msprobe.report.messages import paragraph, say
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.outputs import Output, refuse_inside, written
from mindrlhf_msprobe.storage.reading.reader import open_run
from mindrlhf_msprobe.storage.records import cell_name

if TYPE_CHECKING:
    from mindspore import nn

    from mindrlhf_msprobe.demo.fault import Fault, RolloutFault
    from mindrlhf_msprobe.demo.trainer import PPOTrainer


DEFAULT_CELL = ("reference_compute_log_prob", "model.layers.1.feed_forward.w2")
EXAMPLE = "ppo_demo.yaml"
#: What `--fault` calls the faults of the rollout network; fault.py plants them.
NOT_SYNCHRONISED, ROTARY = "not-synchronised", "rotary-off-by-one"
ROLLOUT_FAULTS = (NOT_SYNCHRONISED, ROTARY, "lm-head-dtype", "mask-padding", "temperature")
AS_PLANTED = 0
NOT_AS_PLANTED = 1


def run_demo(arguments: argparse.Namespace) -> int:
    """Run the demo as the command line says; return its exit code.

    Raises:
        ConfigError, RunError, UsageError: it could not be decided whether the verdict is right.
    """
    plan = DemoPlan.from_arguments(arguments)
    missing = [name for name in ("mindspore", "mindformers") if find_spec(name) is None]
    if missing:
        raise UsageError.saying("demo.needs", names=missing)
    refuse_inside(plan.output)
    try:
        plan.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = error.strerror or str(error)
        raise RunError.saying("demo.output", path=str(plan.output), error=why) from None
    quiet_frameworks(plan.output / "log")
    from mindrlhf_msprobe.report.comparison import render
    from mindrlhf_msprobe.report.terminal import fitted, progress_bar

    fault = plan.fault()
    _check_training(plan)
    with quiet_probe(), progress_bar(say("demo.training")) as advance:
        if arguments.only is not None:
            run, planted = (plan.run_a, None) if arguments.only == "a" else (plan.run_b, fault)
            _train(plan, run, planted, lambda done: advance(done, plan.steps))
            return AS_PLANTED
        total = 2 * plan.steps
        advance(0, total)
        _train(plan, plan.run_a, None, lambda done: advance(done, total))
        _train(plan, plan.run_b, fault, lambda done: advance(plan.steps + done, total))
    from mindrlhf_msprobe.api import compare_runs

    start = time.perf_counter()
    result = compare_runs(plan.run_a, plan.run_b, output_path=plan.comparison)
    answer = render(result, time.perf_counter() - start)
    right, sentences = _assess(result, fault, plan.probe_config)
    words = paragraph(sentences)
    following = _what_next(plan, result, arguments)
    said = "\n".join((answer, "", words, following))
    print(fitted(said, sys.stdout))
    if result.verdict.status is Outcome.INCOMPARABLE:
        return UNDECIDED
    return AS_PLANTED if right else NOT_AS_PLANTED


@dataclass(frozen=True)
class DemoPlan:
    """What the command line says, checked before anything heavy is loaded."""

    output: Path
    steps: int
    seed: int
    phase: Phase | None
    cell: str
    rollout_fault: str | None
    from_step: int
    trainer_config: Mapping[str, Any]
    probe_config: ProbeConfig

    @property
    def run_a(self) -> Path:
        """The run without a fault."""
        return self.output / "run_a"

    @property
    def run_b(self) -> Path:
        """The run with it."""
        return self.output / "run_b"

    @property
    def comparison(self) -> Path:
        """The tables and verdict.json."""
        return self.output / "comparison"

    def fault(self) -> Fault | RolloutFault | None:
        """Return the fault to plant; imports the framework."""
        from mindrlhf_msprobe.demo.fault import Fault, RolloutFault

        if self.rollout_fault is not None:
            layers = self.trainer_config["actor_config"]["model_config"]["num_layers"]
            return RolloutFault(self.rollout_fault, self.from_step, last_layer=layers - 1)
        return None if self.phase is None else Fault(self.phase.name, self.cell, self.from_step)

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace) -> DemoPlan:
        """Check the arguments.

        Raises:
            ConfigError, RunError, UsageError: one of them cannot be used.
        """
        if arguments.steps < 1:
            more = message("demo.one_or_more")
            given = {"name": "--steps", "value": arguments.steps}
            raise UsageError.saying("error.expected", **given, what=more)
        if not 0 <= arguments.seed < 2**32:
            seeds = f"0 … {2**32 - 1}"
            given = {"name": "--seed", "value": arguments.seed}
            raise UsageError.saying("error.expected", **given, what=seeds)
        from_step = arguments.fault_step
        if from_step is None:
            from_step = min(1, arguments.steps - 1)
        if not 0 <= from_step < arguments.steps:
            raise UsageError.saying(
                "demo.fault_step", value=from_step, last=arguments.steps - 1, steps=arguments.steps
            )
        rollout_fault = arguments.fault if arguments.fault in ROLLOUT_FAULTS else None
        phase, cell = None, ""
        if rollout_fault is None and not arguments.no_fault:
            phase, cell = _parse_fault(arguments.fault)
        trainer_config, probe_config = _read_config(arguments.config)
        compares_phases = rollout_fault is not None or arguments.no_fault
        if compares_phases and arguments.config is None:  # mismatch has something to look at
            probe_config = replace(probe_config, task="sketch")
        if rollout_fault == NOT_SYNCHRONISED and from_step == 0:
            raise UsageError.saying("demo.no_update_before", name=rollout_fault)
        if rollout_fault == ROTARY and trainer_config["rl_config"]["response_length"] == 1:
            raise UsageError.saying("demo.nothing_decoded", name=rollout_fault)
        plan = cls(
            output=Path(arguments.output),
            steps=arguments.steps,
            seed=arguments.seed,
            phase=phase,
            cell=cell,
            rollout_fault=rollout_fault,
            from_step=from_step,
            trainer_config=trainer_config,
            probe_config=probe_config,
        )
        for run in () if probe_config.existing == "overwrite" else (plan.run_a, plan.run_b):
            if run.exists() and (layout.manifests(run) or layout.has_dumps(run)):
                raise RunError.saying("demo.holds_a_run", run=str(run), output=str(plan.output))
        return plan


def _parse_fault(text: str | None) -> tuple[Phase, str]:
    phases = phase_table({})
    if text is None:
        return phases[DEFAULT_CELL[0]], DEFAULT_CELL[1]
    name, _, cell = (part.strip() for part in text.partition(":"))
    if not name or not cell:
        raise UsageError.saying(
            "demo.fault_form",
            value=repr(text),
            example=":".join(DEFAULT_CELL),
            nearest=nearest_of(text, ROLLOUT_FAULTS),
            names=", ".join(ROLLOUT_FAULTS),
        )
    if name not in phases:
        raise UsageError.saying(
            "demo.fault_phase",
            name=repr(name),
            nearest=nearest_of(name, phases),
            phases=", ".join(phases),
        )
    return phases[name], cell


def _read_config(path: str | None) -> tuple[Mapping[str, Any], ProbeConfig]:
    """Return the trainer's and the probe's configuration, completed from the example."""
    example = read_yaml(example_path(EXAMPLE))
    given = read_yaml(Path(path)) if path is not None else {}
    config = {
        section: _merged(section, example[section], given.get(section))
        for section in example
        if section != SECTION
    }
    if config["rl_config"]["minibatches"] > config["rl_config"]["batch_size"]:
        raise UsageError.saying("demo.minibatches", path=str(path))
    source = path if path is not None and SECTION in given else example
    probe_config = load_config(source)
    if not probe_config.msprobe or not probe_config.records_rank(0):
        setting = "ranks" if probe_config.msprobe else "msprobe"
        raise UsageError.saying(
            "demo.nothing_recorded",
            path=str(path),
            section=SECTION,
            setting=setting,
            value=repr(getattr(probe_config, setting)),
        )
    return config, probe_config


def _merged(place: str, example: Mapping[str, Any], given: Any) -> dict[str, Any]:
    """Return a section of the trainer's settings, completed from the example and checked.

    Raises:
        UsageError: a key is not known, or a value is not of the example's kind.
    """
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        shown = str(dict(example))
        raise UsageError.saying("demo.no_settings", place=place, value=repr(given), example=shown)
    for key in given:
        if key not in example:
            raise UsageError.saying(
                "demo.unknown_key",
                key=repr(key),
                place=place,
                nearest=nearest_of(str(key), example),
                keys=", ".join(example),
            )
    merged = {}
    for key, usual in example.items():
        value = given.get(key, usual)
        if isinstance(usual, Mapping):
            value = _merged(f"{place}.{key}", usual, value)
        else:
            whole = isinstance(usual, int)
            kinds = (int,) if whole else (int, float)
            fits = isinstance(value, kinds) and not isinstance(value, bool)
            fits = fits and (1 if whole else 0) <= value < math.inf
            if not fits or (key == "temperature" and not value):
                known = {"place": f"{place}.{key}", "value": repr(value), "usual": str(usual)}
                raise UsageError.saying("demo.number", **known, whole=whole)
        merged[key] = value
    return merged


def example_path(name: str) -> Path:
    """Return the path of a file of yaml_examples, installed or in a checkout."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "yaml_examples", package.parent / "yaml_examples"):
        if (folder / name).is_file():
            return folder / name
    raise RunError.saying("demo.no_example", name=name)


class _PhaseNote:
    """The probe as the trainer sees it, noting which phase is open: when the fault is active."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self.open_phase: str | None = None

    @contextmanager
    def phase(self, name: str, **how: Any) -> Iterator[None]:
        with self._probe.phase(name, **how):
            self.open_phase = name
            try:
                yield
            finally:
                self.open_phase = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._probe, name)


def _check_training(plan: DemoPlan) -> None:
    """Build and run it once, unrecorded: what is wrong shows before a directory is claimed.

    Raises:
        UsageError: the networks cannot be built, or the planted cell is not among them.
    """
    from mindrlhf_msprobe.demo.fault import find_cell
    from mindrlhf_msprobe.demo.trainer import PPOTrainer

    try:
        trainer = PPOTrainer(plan.trainer_config, Probe(), plan.seed)
        if plan.phase is not None:
            find_cell(_network_of(trainer, plan.phase), plan.cell)
        trainer.make_experience()
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UsageError.saying("demo.cannot_build", error=error) from error


def _train(
    plan: DemoPlan,
    dump_path: Path,
    fault: Fault | RolloutFault | None,
    on_step: Callable[[int], None],
) -> None:
    """Train once, recorded into `dump_path`, with the fault planted if there is one."""
    from mindrlhf_msprobe.demo.fault import RolloutFault
    from mindrlhf_msprobe.demo.trainer import PPOTrainer

    with Probe(replace(plan.probe_config, dump_path=str(dump_path))) as probe:
        dump_path = Path(probe.config.dump_path)
        note = _PhaseNote(probe)
        trainer = PPOTrainer(plan.trainer_config, note, plan.seed)  # type: ignore[arg-type]
        struck = False

        def strikes() -> bool:
            nonlocal struck
            assert fault is not None
            now = note.open_phase == fault.phase and trainer.global_step >= fault.from_step
            struck = struck or now
            return now

        if isinstance(fault, RolloutFault):
            fault.plant(trainer)
        elif fault is not None and plan.phase is not None:
            fault.plant(_network_of(trainer, plan.phase), strikes)
        trainer.train(plan.steps, lambda step, _: on_step(step + 1))
    if fault is not None and plan.phase is not None and not struck:
        name = plan.phase.name
        cells = sorted({entry.cell for entry in open_run(dump_path).entries(name)})
        raise UsageError.saying("demo.never_ran", cell=plan.cell, phase=name, cells=cells)


def _network_of(trainer: PPOTrainer, phase: Phase) -> nn.Cell:
    return trainer.rollout if phase.name == GENERATE else trainer.networks[phase.role]


def _assess(
    result: Comparison, fault: Fault | RolloutFault | None, config: ProbeConfig
) -> tuple[bool, Messages]:
    """Return whether the verdict is what was planted, and say so."""
    status, first = result.verdict.status, result.verdict.first_divergence
    if fault is None:
        if status is Outcome.IDENTICAL:
            return True, (message("demo.none_identical"),)
        if status is Outcome.WITHIN_TOLERANCE:
            return False, (message("demo.none_within"),)
        return False, (message("demo.none_otherwise", status=status.value),)
    planted = message("demo.planted", fault=str(fault), step=fault.from_step)
    if first is None:
        unseen = () if _recorded(fault, config) else (message("demo.not_recorded"),)
        return False, (planted, message("demo.not_shown", status=status.value), *unseen)
    cell = None if first.entry is None else cell_name(first.entry)
    blamed = first.cell if first.operator and first.cell else cell or first.record
    found = message("demo.found", phase=first.phase, cell=blamed, step=first.step)
    there = (first.phase, first.step) == (fault.phase, fault.from_step + config.initial_step)
    if there and fault.is_named_by(first.cell if first.operator else cell, first.cause):
        as_planted = "demo.verdict_is" if fault.cell_name else "demo.no_cell_computes"
        return True, (planted, found, message(as_planted, planted=True))
    if not _recorded(fault, config) and first.phase == fault.phase:
        return True, (planted, found, message("demo.phase_only"))
    return False, (planted, found, message("demo.verdict_is", planted=False))


def _recorded(fault: Fault | RolloutFault, config: ProbeConfig) -> bool:
    phase = config.phase_table()[fault.phase]
    return (
        config.records_phase(phase)
        and config.records_step(fault.from_step + config.initial_step)
        and (fault.cell_name is None or config.records_cell(fault.cell_name))
        and "forward" in config.directions
        and (
            not phase.counts_tokens
            or config.token_range_start <= fault.first_token <= config.token_range_end
        )
    )


def _write_page(plan: DemoPlan, result: Comparison) -> str:
    """Write the page of both runs; return what to do with it, or what it needs."""
    from mindrlhf_msprobe.api import check_runs
    from mindrlhf_msprobe.report.page.page import Shown, is_page, write_page

    paths, page = (plan.run_a, plan.run_b), plan.output / "report.html"
    try:
        checks = check_runs(paths).runs
        with written(Output(page, is_page)) as (part,):
            write_page(Shown(tuple(map(open_run, paths)), result, checks), part)
    except UsageError as error:
        return str(error.said)
    return say("demo.open_page", file=str(page))


def _what_next(plan: DemoPlan, result: Comparison, arguments: argparse.Namespace) -> str:
    lines = [say("demo.next"), f"  {_write_page(plan, result)}"]
    first = result.verdict.first_divergence
    if first is not None:
        table = next((t for t in result.tables if first.phase and first.phase in t), None)
        if table is not None:
            lines.append(f"  {say('demo.open_table', file=str(plan.comparison / table))}")
    if plan.phase is None and plan.probe_config.keeps_rows:
        mismatch = f"mindrlhf-msprobe mismatch {plan.run_b}"
        lines.append(f"  {say('demo.mismatch', command=mismatch)}")
    runs = f"{plan.run_a} {plan.run_b}"
    again = f"mindrlhf-msprobe compare {runs} -o OUT"
    lines.append(f"  {say('demo.look', run=str(plan.run_a))}")
    lines.append(f"  {say('demo.again', command=again)}")
    if first is not None:  # what proves it trains as this demo did
        given = ["--output", str(plan.output / "again"), "--only", "{side}"]
        for name in ("steps", "seed", "fault", "fault_step", "config"):
            if (value := getattr(arguments, name)) is not None:
                given += [f"--{name.replace('_', '-')}", str(value)]
        proof = f"mindrlhf-msprobe prove {runs} -o {plan.output / 'proof'}"
        proof += f" -- mindrlhf-msprobe demo {shlex.join(given)}"
        lines.append(f"  {say('demo.prove', command=proof)}")
    trainer = str(Path(__file__).with_name("trainer.py"))
    return "\n".join([*lines, f"  {say('demo.trainer', file=trainer)}"])


def quiet_frameworks(log_dir: str | os.PathLike[str]) -> None:
    """Send the frameworks' log files to `log_dir` and keep stdout and stderr for our own words.

    Call it before the first import of mindspore or mindformers: both read these settings while
    they are imported. An environment variable that is already set is left as it is.

    Without it, MindFormers writes `./output/log/rank_0/{info,error}.log` and repeats every INFO
    line on stdout, and MindSpore prints its warnings on stderr. Errors are still shown.

    Args:
        log_dir: an existing or a new directory. MindFormers sets the mode of the folders it logs
            to, therefore it gets a folder of its own inside.
    """
    os.environ.setdefault("GLOG_v", "3")  # MindSpore: 3 is ERROR
    log_path = os.environ.setdefault("LOG_MF_PATH", str(Path(log_dir).absolute() / "mindformers"))
    # MindFormers names its logger after the path, sets its level and adds its handlers itself,
    # but it never touches the filters.
    logger = logging.getLogger(f"mindformers{os.path.expanduser(log_path)}")
    logger.addFilter(lambda record: record.levelno >= logging.ERROR)


@contextmanager
def quiet_probe() -> Iterator[None]:
    """Keep back what the probe tells users of their own training: how much room a step takes."""

    def is_no_information(record: logging.LogRecord) -> bool:
        return record.levelno != logging.INFO

    probe_logger.addFilter(is_no_information)
    try:
        yield
    finally:
        probe_logger.removeFilter(is_no_information)
