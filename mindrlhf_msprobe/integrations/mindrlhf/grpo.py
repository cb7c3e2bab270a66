"""MindRLHF's GRPO: which of its methods are the phases, and what is recorded of their results."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from mindrlhf_msprobe.capture.arguments import MISSING, key_data_items
from mindrlhf_msprobe.common.current import CURRENT
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.common.yaml_file import read_yaml
from mindrlhf_msprobe.compat.shared import MsProbe
from mindrlhf_msprobe.config import SECTION, ProbeConfig, load_config
from mindrlhf_msprobe.errors import ConfigError, NotThere, RunError
from mindrlhf_msprobe.integrations.mindrlhf.generation import (
    KEYS,
    MindFormersGeneration,
    VllmGeneration,
    widths_of,
)
from mindrlhf_msprobe.integrations.mindrlhf.loss_values import LossValues, returned_by_name
from mindrlhf_msprobe.integrations.patches import CALLS_MSPROBE, Part, Patches
from mindrlhf_msprobe.integrations.session import Session, begin, ignored_by, in_ray_actor, sections
from mindrlhf_msprobe.log import inform, warn

_TRAINER = message("trainer.grpo")
_GENERATE = "actor_generate_sequences"
_OLD = "actor_compute_log_prob"
_REFERENCE = "reference_compute_log_prob"
_UPDATE = "actor_update"
_REWARD = "reward_compute"  # declared by msprobe_config.phases
_NO_REWARD_NETWORK = message("trainer.rewards_by_functions")

#: What is recorded of the loss, by what MindRLHF calls it in the construct of its GRPOModel.
_OF_LOSS = {
    "construct": (
        ("per_token_logps", "log_prob"),
        ("ratio", "ratio"),
        ("compute_approx_kl()", "kl"),
        ("kl_loss", "kl_loss"),
        ("pg_loss", "actor_loss"),
        ("actor_loss", "actor_loss"),
    )
}
#: What the train cell returns, in this order.
_OF_TRAIN_STEP = ("loss", "overflow", "loss_scale", "lr", "grad_norm")
_OWN = "msprobe_own_keys"  # of MindRLHF's class for the section
#: What is not there where a setting of rl_config is False: the setting, why, a phase and a key.
_SWITCHED_OFF = (
    ("enable_oldpolicy", message("trainer.no_old_policy"), _OLD, "old_log_prob"),
    ("enable_ref", message("trainer.no_reference"), _REFERENCE, "ref_log_prob"),
)
_EACH_REWARD = "rewards_per_func"  # samples × verifier functions
#: Of each phase the class that runs it, and its method.
_WORKERS = {
    _GENERATE: ("InferWorker", "generate"),
    _REFERENCE: ("RefWorker", "compute_ref_log_prob"),
    _OLD: ("OldPolicyWorker", "compute_old_log_prob"),
    _UPDATE: ("TrainWorker", "train"),
}


def allow_section(module: ModuleType) -> None:
    """Let GRPOConfig take a section `msprobe_config` of ours, and check it when the file is read.

    Of a MindRLHF that has a section of this name, its class stays where a file has none.
    """
    kind = module.GRPOConfig
    known = getattr(kind, SECTION, None)
    if isinstance(known, type):
        # The keys of MindRLHF's section that are none of ours, with their defaults.
        ours = {field.name for field in dataclasses.fields(ProbeConfig)}
        keys = dataclasses.fields(known) if dataclasses.is_dataclass(known) else ()
        own = {key.name: getattr(known, key.name, None) for key in keys if key.name not in ours}
        setattr(kind, SECTION, type(known.__name__, (known,), {"__new__": _section_of, _OWN: own}))
    elif known is None:
        setattr(kind, SECTION, staticmethod(_section))
    else:  # done before
        return
    Patches(_TRAINER).wrap(kind, "__init__", _check_section, without="", raises=(ConfigError,))


def install_grpo(module: ModuleType) -> None:
    """Record the trainings of the GRPOTrainer that a module defines."""
    _Integration(module).install()


def _section(**values: Any) -> ProbeConfig:
    return load_config({SECTION: values}, ignore=ignored_by(_TRAINER))


def _section_of(kind: Any, /, **values: Any) -> ProbeConfig:
    """Return the section; what only MindRLHF's own class knows are attributes of it."""
    own = getattr(kind, _OWN)
    settings = _section(**{name: values[name] for name in values if name not in own})
    for name, default in own.items():
        object.__setattr__(settings, name, values.get(name, default))
    return settings


def _check_section(config: Any, file_path: Any, *_: Any, **__: Any) -> Part:
    """Say what is wrong with a section; MindRLHF itself would unpack it as it is.

    Unknown keys stop no training: `_section` says them and leaves them out.

    Raises:
        ConfigError: a value is wrong, or a key is no text, which MindRLHF cannot unpack.
    """
    try:
        content = read_yaml(Path(file_path))
    except (ConfigError, TypeError):  # MindRLHF's to say
        content = {}
    if SECTION in content:
        section = content[SECTION]
        if not isinstance(section, Mapping):
            empty = message("config.empty_section")
            shown = empty if section is None else repr(section)
            raise ConfigError.saying("config.section", path=file_path, shown=shown)
        if no_texts := [key for key in section if not isinstance(key, str)]:
            raise ConfigError.saying("config.keys", path=file_path, found=str(no_texts))
        own = getattr(getattr(type(config), SECTION, None), _OWN, {})
        if foreign := [name for name in section if name in own]:
            keys = ", ".join(foreign)
            warn("log.left_to_mindrlhf", path=str(file_path), keys=keys, section=SECTION)
            ours = {name: section[name] for name in section if name not in own}
            load_config({SECTION: ours}, ignore=lambda _: None)
        else:
            load_config(file_path, ignore=lambda _: None)
    yield


class _Integration:
    """What the methods of one GRPOTrainer class do beside their own work."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._patches = Patches(_TRAINER)
        self._vllm = VllmGeneration(self._patches)
        self._generation = MindFormersGeneration(self._patches)
        self._config: Any = None  # the GRPOConfig the session was begun for, or was not
        self._train_steps: list[Any] = []  # one a pack level
        self._loss_values: LossValues | None = None
        self._no_each_reward: Message | None = None  # why each function's rewards are not recorded
        self._recorded: set[str] = set()  # key data that are recorded by what is wrapped
        self._replaced: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._step_open = False
        self._trainer_ends_steps = False
        self._trainer_announces = True  # else the first worker tells of a training that begins

    def install(self) -> None:
        """Wrap the methods; what is missing is said when a training is recorded."""
        self._trainer_announces = self._wrap(
            "GRPOTrainer._init_grpo_configs",
            self._around_configs,
            message("trainer.dump_path_late"),
        )
        recorded = self._patches.while_recorded
        lost = {phase: [phase] for phase in _WORKERS}
        lost[_GENERATE] += KEYS
        for phase, (worker, _) in _WORKERS.items():
            around: Callable[..., Part] = partial(self._around_worker, phase)
            without = message("trainer.no_layers", phase=phase)
            self._wrap(f"{worker}.__init__", around, without, lost[phase])
        for phase, (worker, method) in _WORKERS.items():
            is_update = phase == _UPDATE
            around = self._around_train if is_update else partial(self._around_phase, phase)
            code = "trainer.no_layers_no_step" if is_update else "trainer.no_layers"
            without = message(code, phase=phase)
            self._wrap(f"{worker}.{method}", recorded(around), without, lost[phase])
        for method, keys, around in (
            ("generate_sequence", ["prompts", "responses"], _saving(_prompts_and_responses)),
            ("compute_advantages", ["advantages"], _saving(lambda it: {"advantages": it})),
            ("compute_ref_log_probs", ["ref_log_prob"], _saving(lambda it: {"ref_log_prob": it})),
            ("_generate_old_logps", ["old_log_prob"], _saving(_old_log_prob)),
            ("compute_rewards", ["rewards"], self._around_rewards),
        ):
            without = message("trainer.no_keys", keys=keys)
            if self._wrap(f"GRPOExperienceMaker.{method}", recorded(around), without, keys):
                self._recorded.update(keys)
        maker = self._class("GRPOExperienceMaker")
        if maker is not None:
            with suppress(NotThere):  # what is generated is recorded, or played, as a rollout
                self._patches.play(maker, "generate_sequence")
        # What MindRLHF's own MsProbe is called with, where it has one, this probe records.
        own = self._class("MsProbe")
        self._trainer_ends_steps = own is not None and hasattr(own, "step")
        for name, instead in (
            ("config_init", self._own_config_init),
            ("save_configs", self._own_save_configs),
            ("save_data", self._own_save_data),
            ("save_string_list", self._own_save_data),
            ("step", self._own_step),
        ):
            self._patches.replace(own, name, instead)
        self._vllm.install()
        self._wrap(
            "GRPOExperienceMaker.make_experience",
            recorded(self._around_experience),
            message("trainer.one_step"),
        )
        self._wrap(
            "GRPOTrainer.run_grpo_train",
            recorded(self._around_run),
            message("trainer.no_configurations"),
        )

    def _wrap(
        self, method: str, around: Callable[..., Part], without: Message, lost: Sequence[str] = ()
    ) -> bool:
        class_name, name = method.split(".")
        owner = self._class(class_name)
        if owner is None:
            self._patches.note_missing(class_name, without, lost)
            return False
        return self._patches.wrap(
            owner, name, around, without=without, lost=lost, raises=(ConfigError, RunError)
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
        session = begin(config, _TRAINER, apart)
        if getattr(getattr(config, SECTION, None), "msprobe", False) is True:
            self._replace_save()  # on a rank that is not recorded, too: its loss calls it there
        self._patches.record(session)
        if session is not None:
            self._save_each_reward(session)
            if _REWARD in session.probe.config.phases:
                session.probe.leave_out(_REWARD, _NO_REWARD_NETWORK)
            for setting, why, phase, key in _SWITCHED_OFF:
                if getattr(getattr(config, "rl_config", None), setting, True) is False:
                    inform("log.switched_off", trainer=_TRAINER, keys=[phase, key], why=why)
                    session.note_lost(phase, why)
                    session.note_lost(key, why)

    def _end(self) -> None:
        session = self._patches.session
        self._patches.record(None)
        values, self._loss_values = self._loss_values, None
        if values is not None:
            values.remove()
        self._config, self._train_steps = None, []
        self._step_open = False
        self._vllm.end()
        self._generation.end()
        for names, before in self._replaced:
            names.update(before)
        self._replaced.clear()
        if session is not None:
            self._save_each_reward(None)
            session.probe.close()

    def _around_configs(self, *_: Any, **__: Any) -> Part:
        self._begin((yield))

    def _around_worker(self, phase: str, worker: Any, /, *args: Any, **kwargs: Any) -> Part:
        with self._vllm.building() if phase == _GENERATE else nullcontext():
            yield
        if self._config is None and (in_ray_actor() or not self._trainer_announces):
            config = kwargs.get("grpo_config", args[0] if args else None)
            self._begin(config, apart=_WORKERS[phase][0])
        if (session := self._patches.session) is None:
            return
        session.configurations |= {  # of the models that a worker holds, named after it
            f"{type(worker).__name__}.{name}": value
            for name, value in vars(worker).items()
            if "model_config" in name and callable(getattr(value, "to_dict", None))
        }
        if phase == _GENERATE:
            self._watch_infer(session, worker)
        elif phase == _UPDATE:
            self._watch_train(session, worker)
        else:
            network = "ref_model" if phase == _REFERENCE else "old_policy_model"
            session.watch(phase, worker, network)

    def _watch_infer(self, session: Session, worker: Any) -> None:
        mode = getattr(getattr(worker, "use_vllm", None), "name", "ORIGIN")
        if mode == "ORIGIN":
            session.watch(_GENERATE, worker, "grpo_model_infer.grpo_model.policy_model")
        else:  # in its mode for debugging vLLM builds the network, and MindFormers generates
            self._vllm.watch(session, worker, generates=mode == "VLLM")
        if mode != "VLLM":
            with suppress(AttributeError):  # said of the network around it
                model = worker.grpo_model_infer.grpo_model.policy_model.model
                self._generation.watch(session, model, widths_of(worker), own=mode == "ORIGIN")

    def _watch_train(self, session: Session, worker: Any) -> None:
        cells = worker.grpo_with_grad
        self._train_steps = list(cells) if isinstance(cells, (list, tuple)) else [cells]
        loss = worker.grpo_model_train.grpo_model_train
        if session.probe.config.key_data_dump:
            self._loss_values = LossValues(session, loss, _OF_LOSS)
        session.watch(
            _UPDATE,
            worker,
            "grpo_model_train.grpo_model_train",
            inner="policy_model",
            optimizer=next((getattr(cell, "optimizer", None) for cell in self._train_steps), None),
        )
        for kind in {type(cell): None for cell in self._train_steps}:
            self._patches.wrap(
                kind,
                "__call__",
                self._patches.while_recorded(self._around_train_step),
                without=message("trainer.nothing_returned"),
                lost=_OF_TRAIN_STEP,
            )
        self._patches.report(session.note_lost)

    def _around_phase(self, phase: str, session: Session, /, *_: Any, **__: Any) -> Part:
        generating = self._generation.generating() if phase == _GENERATE else nullcontext()
        with session.phase(phase), generating:
            yield

    def _around_rewards(self, session: Session, maker: Any, *_: Any, **__: Any) -> Part:
        with CURRENT.hold() as values:
            result = yield
        functions = getattr(maker, "verifier_function", ())
        names = [getattr(function, "__name__", "") for function in functions]
        keys = [  # a number tells two functions of a name apart
            f"rewards.{name}.{number}" if names.count(name) > 1 else f"rewards.{name}"
            for number, name in enumerate(names)
        ]
        for name, data in values:
            if name != _EACH_REWARD:
                CURRENT.save(session.probe, name, data)
                continue
            for number, key in enumerate(keys):
                session.probe.save_data(key, data[:, number])
        if self._no_each_reward:
            for key in keys:
                session.note_lost(key, self._no_each_reward)
        session.probe.save_data("rewards", result[0])

    def _save_each_reward(self, session: Session | None) -> None:
        """Let the rewards of each verifier function be saved, while a training is recorded."""
        maker = self._class("GRPOExperienceMaker")
        if maker is None:
            return
        try:
            function = self._patches.run_instead(maker, "compute_rewards", None)
            if session is not None and session.probe.config.key_data_dump:
                from mindrlhf_msprobe.capture.local_values import copy_that_saves

                copy = copy_that_saves(function, [(_EACH_REWARD, _EACH_REWARD)])
                self._patches.run_instead(maker, "compute_rewards", copy)
            self._no_each_reward = None
        except NotThere as error:
            self._no_each_reward = error.said
            inform("log.no_each_reward", trainer=_TRAINER, why=error)

    def _around_experience(self, *_: Any, **__: Any) -> Part:
        if self._step_open:  # nothing ended the step before
            if self._trainer_ends_steps:
                CURRENT.log_once(message("log.step_not_called", trainer=_TRAINER))
            self._end_step()
        self._step_open = True
        yield

    def _around_train(self, session: Session, *_: Any, **__: Any) -> Part:
        with session.phase(_UPDATE):
            yield
        if not self._trainer_ends_steps:
            self._end_step()

    def _end_step(self) -> None:
        self._step_open = False
        if (probe := self._patches.probe) is not None:
            probe.step()

    def _around_train_step(self, session: Session, cell: Any, *args: Any, **kwargs: Any) -> Part:
        if not any(cell is known for known in self._train_steps):
            return
        values = self._loss_values
        with nullcontext() if values is None else values.of_one_update(cell, args, kwargs):
            result = yield
        own = () if values is None else values.keys
        returned = returned_by_name(_OF_TRAIN_STEP, result)
        session.probe.save_data({key: returned[key] for key in returned if key not in own})
        for key in set(_OF_TRAIN_STEP).difference(returned):
            why = message("trainer.not_returned", of=type(cell).__name__, key=key)
            session.note_lost(key, why)

    def _replace_save(self) -> None:
        """Let an installed msprobe's `save` in MindRLHF's modules be ours while this records."""
        from mindrlhf_msprobe import save

        package = self._module.__name__.partition(".")[0]
        for name, module in list(sys.modules.items()):
            names = getattr(module, "__dict__", {})
            if name.startswith(f"{package}.") and names.get(CALLS_MSPROBE) is True:
                self._replaced.append((names, {"save": names.get("save")}))
                names["save"] = save

    def _own_config_init(self, config: Any) -> None:
        if self._config is None:  # not the trainer that calls it
            MsProbe.config_init(config)

    def _own_save_configs(self, data: Any) -> None:
        if self._config is None:
            MsProbe.save_configs(data)
        elif self._patches.session is not None and isinstance(data, Mapping):
            known = [getattr(self._config, name, None) for name in sections(self._config)]
            attributes = [getattr(section, "__dict__", None) for section in known]
            news = {
                name: value
                for name, value in data.items()
                if not any(value is each for each in (*known, *attributes))
            }
            self._patches.session.configurations |= news

    def _own_save_data(self, name: Any = MISSING, data: Any = MISSING) -> None:
        given = [value for value in (name, data) if value is not MISSING]
        if self._config is None:
            MsProbe.save_data(*given)
        elif (probe := self._patches.probe) is not None:
            for key, value in key_data_items(None if name is MISSING else name, data, {}):
                if key not in self._recorded:
                    CURRENT.save(probe, key, value)

    def _own_step(self) -> None:
        if self._config is None:
            MsProbe.step()
        else:
            self._end_step()

    def _around_run(self, session: Session, trainer: Any, *_: Any, **__: Any) -> Part:
        try:
            done = trainer.n_epoch * trainer.step_num + trainer.i_step
        except AttributeError as missing:
            warn("log.steps_from_0", trainer=_TRAINER, why=missing)
        else:
            if done:
                session.probe.start_at(done)
        arguments = getattr(getattr(trainer, "args", None), "__dict__", {})
        session.probe.save_configs(
            {
                **sections(self._config),
                **session.configurations,
                "args": {key: arguments[key] for key in arguments if key != "tensor_writer"},
            }
        )
        try:
            with session.probe:
                yield
                if self._step_open:
                    self._end_step()
        finally:
            self._end()


def _saving(of_result: Callable[[Any], dict[str, Any]]) -> Callable[..., Part]:
    """Return what goes around a method whose result holds key data."""

    def around(session: Session, *_: Any, **__: Any) -> Part:
        session.probe.save_data(of_result((yield)))

    return around


def _prompts_and_responses(result: Any) -> dict[str, Any]:
    responses, _, prompts, _ = result
    return {"prompts": prompts, "responses": responses}


def _old_log_prob(result: Any) -> dict[str, Any]:
    """The method returns the entropy, too; earlier versions of it do not."""
    return {"old_log_prob": result[-1] if isinstance(result, tuple) else result}
