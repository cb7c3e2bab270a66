"""MindRLHF's GRPO: which of its methods are the phases, and what is recorded of their results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

from mindrlhf_msprobe.config import SECTION, ProbeConfig, load_config
from mindrlhf_msprobe.errors import ConfigError, RunError
from mindrlhf_msprobe.integrations.grpo_loss import LossValues
from mindrlhf_msprobe.integrations.patches import Part, Patches
from mindrlhf_msprobe.integrations.session import (
    Session,
    begin,
    in_ray_actor,
    model_configs,
    runs_in_python,
    sections,
)
from mindrlhf_msprobe.log import logger
from mindrlhf_msprobe.probe import Probe
from mindrlhf_msprobe.yaml_file import read_yaml

_TRAINER = "MindRLHF's GRPO trainer"
_GENERATE = "actor_generate_sequences"
_OLD = "actor_compute_log_prob"
_REFERENCE = "reference_compute_log_prob"
_UPDATE = "actor_update"


def allow_section(module: ModuleType) -> None:
    """Let GRPOConfig take a section `msprobe_config`, and check it when the file is read."""
    kind = module.GRPOConfig
    if hasattr(kind, SECTION):  # a MindRLHF that knows the section
        return
    setattr(kind, SECTION, staticmethod(_section))
    Patches(_TRAINER).wrap(kind, "__init__", _check_section, otherwise="", raises=(ConfigError,))


def install_grpo(module: ModuleType) -> None:
    """Record the trainings of the GRPOTrainer that a module defines."""
    _Integration(module).install()


def _section(**values: Any) -> ProbeConfig:
    return load_config({SECTION: values})


def _check_section(_config: Any, file_path: Any, *_: Any, **__: Any) -> Part:
    """Explain what is wrong with a section; MindRLHF itself would unpack it as it is."""
    try:
        content = read_yaml(Path(file_path))
    except (ConfigError, TypeError):  # MindRLHF's to say
        content = {}
    if SECTION in content:
        section = content[SECTION]
        if not isinstance(section, Mapping):
            what = "empty" if section is None else repr(section)
            raise ConfigError(
                f"{file_path}: the section {SECTION} is {what}; expected a mapping, "
                f"with `msprobe: true` or `msprobe: false` as its first line."
            )
        load_config(file_path)
    yield


class _Integration:
    """What the methods of one GRPOTrainer class do beside their own work."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._patches = Patches(_TRAINER)
        self._session: Session | None = None
        self._config: Any = None  # the GRPOConfig the session was begun for, or was not
        self._train_step: Any = None
        self._loss: Any = None
        self._loss_values: LossValues | None = None
        self._step_open = False
        self._told_by_trainer = True  # else the first worker tells of a training that begins

    def install(self) -> None:
        """Wrap the methods; what is missing is said when a training is recorded."""
        self._told_by_trainer = self._wrap(
            "GRPOTrainer._init_grpo_configs",
            self._around_configs,
            "a dump_path that cannot be used is noticed only when a network has been built",
        )
        for worker, watch, phase in (
            ("InferWorker", self._watch_infer, _GENERATE),
            ("RefWorker", self._watch_reference, _REFERENCE),
            ("OldPolicyWorker", self._watch_old, _OLD),
            ("TrainWorker", self._watch_train, _UPDATE),
        ):
            self._wrap(
                f"{worker}.__init__",
                self._around_worker(worker, watch),
                f"the layers of {phase} are not recorded",
                [phase],
            )
        for method, phase in (
            ("InferWorker.generate", _GENERATE),
            ("RefWorker.compute_ref_log_prob", _REFERENCE),
            ("OldPolicyWorker.compute_old_log_prob", _OLD),
        ):
            otherwise = f"the layers of {phase} are not recorded"
            self._wrap(method, self._around_phase(phase), otherwise, [phase])
        self._wrap(
            "TrainWorker.train",
            self._around_train,
            "the layers of actor_update are not recorded, and a step ends where the next begins",
            [_UPDATE],
        )
        for method, keys, of_result in (
            ("generate_sequence", ["prompts", "responses"], _prompts_and_responses),
            ("compute_rewards", ["rewards"], lambda result: {"rewards": result[0]}),
            ("compute_advantages", ["advantages"], lambda result: {"advantages": result}),
            ("compute_ref_log_probs", ["ref_log_prob"], lambda result: {"ref_log_prob": result}),
            ("_generate_old_logps", ["old_log_prob"], _old_log_prob),
        ):
            self._wrap(
                f"GRPOExperienceMaker.{method}",
                self._around_data(of_result),
                f"{' and '.join(keys)} are not recorded",
                keys,
            )
        self._wrap(
            "GRPOExperienceMaker.make_experience",
            self._around_experience,
            "without TrainWorker.train too, all steps are recorded as one",
        )
        self._wrap(
            "GRPOTrainer.run_grpo_train",
            self._around_run,
            "configurations are not recorded, and the steps of a resumed training count from 0",
        )

    def _wrap(
        self, method: str, around: Callable[..., Part], otherwise: str, lost: Sequence[str] = ()
    ) -> bool:
        class_name, name = method.split(".")
        owner = self._class(class_name)
        if owner is None:
            self._patches.note_missing(class_name, otherwise, lost)
            return False
        return self._patches.wrap(
            owner, name, around, otherwise=otherwise, lost=lost, raises=(ConfigError, RunError)
        )

    def _class(self, name: str) -> type | None:
        """Return a class of MindRLHF that the trainer's module has imported, wherever it is."""
        package = self._module.__name__.partition(".")[0]
        others = [m for key, m in sys.modules.items() if key.startswith(f"{package}.")]
        for module in (self._module, *others):
            found = getattr(module, "__dict__", {}).get(name)
            if isinstance(found, type):
                return found
        return None

    def _begin(self, config: Any, apart: str = "") -> None:
        """Begin to record a training, if its configuration says so."""
        self._end()
        self._config = config
        self._session = begin(config, _TRAINER, apart)
        if self._session is not None:
            self._patches.strict = self._session.probe.config.strict
            self._patches.report(self._session.note_lost)
            rl_config = getattr(config, "rl_config", None)
            if getattr(rl_config, "enable_oldpolicy", True) is False:
                why = "rl_config.enable_oldpolicy is False, so no old policy runs"
                logger.info("%s: %s and old_log_prob are not recorded: %s", _TRAINER, _OLD, why)
                for name in (_OLD, "old_log_prob"):
                    self._session.note_lost(name, why)

    def _end(self) -> None:
        session, self._session = self._session, None
        self._config = self._train_step = self._loss = self._loss_values = None
        self._step_open = False
        if session is not None:
            session.probe.close()

    def _around_configs(self, *_: Any, **__: Any) -> Part:
        self._begin((yield))

    def _around_worker(self, name: str, watch: Callable[[Session, Any], None]) -> Any:
        def around(worker: Any, *args: Any, **kwargs: Any) -> Part:
            yield
            if self._config is None and (in_ray_actor() or not self._told_by_trainer):
                self._begin(kwargs.get("grpo_config", args[0] if args else None), apart=name)
            if self._session is not None:
                self._session.configurations |= model_configs(worker)
                watch(self._session, worker)

        return around

    def _watch_infer(self, session: Session, worker: Any) -> None:
        mode = getattr(getattr(worker, "use_vllm", None), "name", "ORIGIN")
        if mode == "VLLM":
            session.leave_out(
                _GENERATE,
                "use_vllm: 1 lets vLLM generate, with a network and graphs of its own. Prompts and "
                "responses are recorded; use_vllm: 0 records the layers too",
            )
        elif mode == "ORIGIN":
            session.watch(_GENERATE, worker, "grpo_model_infer.grpo_model.policy_model")
        else:
            session.watch(_GENERATE, worker, "policy_model")

    def _watch_reference(self, session: Session, worker: Any) -> None:
        session.watch(_REFERENCE, worker, "ref_model")

    def _watch_old(self, session: Session, worker: Any) -> None:
        session.watch(_OLD, worker, "old_policy_model")

    def _watch_train(self, session: Session, worker: Any) -> None:
        session.watch(
            _UPDATE,
            worker,
            "grpo_model_train.grpo_model_train",
            inner="policy_model",
            optimizer="grpo_with_grad.optimizer",
        )
        self._train_step = worker.grpo_with_grad
        self._loss = worker.grpo_model_train.grpo_model_train
        self._patches.wrap(
            type(self._train_step),
            "__call__",
            self._around_train_step,
            otherwise="loss is not recorded",
            lost=["loss"],
        )
        if getattr(self._loss, "enable_full_monitor", False):
            self._patches.wrap(
                type(self._loss),
                "get_klloss",
                self._around_kl_loss,
                otherwise="kl_loss is not recorded in graph mode",
            )
        self._patches.report(session.note_lost)
        if not session.probe.config.key_data_dump:
            return
        if runs_in_python(self._loss):
            try:
                self._loss_values = LossValues(self._loss)
            except AttributeError as error:
                logger.warning("%s: log_prob and kl_loss are not recorded: %s", _TRAINER, error)
                session.note_lost("log_prob", str(error))
                session.note_lost("kl_loss", str(error))
            return
        why = "it never leaves the compiled loss"
        session.note_lost("log_prob", f"{why}; the root cell's output in {_UPDATE} holds it")
        if not getattr(self._loss, "enable_full_monitor", False):
            session.note_lost("kl_loss", why)
            logger.info(
                "%s: log_prob and kl_loss are not recorded as key data, for they never leave the "
                "compiled loss; log_prob is the output of the root cell in %s.",
                _TRAINER,
                _UPDATE,
            )

    def _around_phase(self, phase: str) -> Any:
        def around(*_: Any, **__: Any) -> Part:
            if self._session is not None:
                with self._session.phase(phase):
                    yield

        return around

    def _around_data(self, of_result: Callable[[Any], dict[str, Any]]) -> Any:
        def around(*_: Any, **__: Any) -> Part:
            result = yield
            if self._session is not None:
                self._session.probe.save_data(of_result(result))

        return around

    def _around_experience(self, *_: Any, **__: Any) -> Part:
        if self._session is not None:
            if self._step_open:  # nothing told where the step before ended
                self._session.probe.step()
            self._step_open = True
            yield

    def _around_train(self, *_: Any, **__: Any) -> Part:
        if self._session is not None:
            with self._session.phase(_UPDATE):
                yield
            self._step_open = False
            self._session.probe.step()

    def _around_train_step(self, cell: Any, *_: Any, **__: Any) -> Part:
        session = self._session
        if session is None or cell is not self._train_step:
            return
        values = self._loss_values
        with values if values is not None and runs_in_python(self._loss) else nullcontext():
            result = yield
        session.probe.save_data(loss=result[0])
        if values is not None:
            session.probe.save_data(values.found())

    def _around_kl_loss(self, model: Any, *_: Any, **__: Any) -> Part:
        result = yield
        if self._session is not None and model is self._loss and not runs_in_python(model):
            self._session.probe.save_data(kl_loss=result)

    def _around_run(self, trainer: Any, *_: Any, **__: Any) -> Part:
        if self._session is None:
            return
        self._start_where_it_resumes(self._session.probe, trainer)
        arguments = getattr(getattr(trainer, "args", None), "__dict__", {})
        self._session.probe.save_configs(
            {
                **sections(self._config),
                **self._session.configurations,
                "args": {key: arguments[key] for key in arguments if key != "tensor_writer"},
            }
        )
        try:
            with self._session.probe:
                yield
        finally:
            self._end()

    def _start_where_it_resumes(self, probe: Probe, trainer: Any) -> None:
        try:
            done = trainer.n_epoch * trainer.step_num + trainer.i_step
        except AttributeError as missing:
            logger.warning("%s: the steps are counted from 0 if it resumes: %s", _TRAINER, missing)
        else:
            if done:
                probe.start_at(done)


def _prompts_and_responses(result: Any) -> dict[str, Any]:
    responses, _, prompts, _ = result
    return {"prompts": prompts, "responses": responses}


def _old_log_prob(result: Any) -> dict[str, Any]:
    """The method returns the entropy, too; earlier versions of it do not."""
    return {"old_log_prob": result[-1] if isinstance(result, tuple) else result}
