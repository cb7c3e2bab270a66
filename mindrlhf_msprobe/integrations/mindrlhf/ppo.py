"""MindRLHF's PPO, of its older versions: which calls are the phases, and what is recorded of them.

Its configuration has no place for a section of ours; `msprobe_config` stands at the top of the
actor's YAML file (`sft_model_path`), where MindRLHF reads past it.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.common.yaml_file import read_yaml
from mindrlhf_msprobe.config import SECTION, load_config
from mindrlhf_msprobe.errors import ConfigError, NotThere, RunError
from mindrlhf_msprobe.integrations.mindformers_patches import plain
from mindrlhf_msprobe.integrations.mindrlhf.generation import KEYS, MindFormersGeneration, as_widths
from mindrlhf_msprobe.integrations.mindrlhf.loss_values import LossValues, returned_by_name
from mindrlhf_msprobe.integrations.patches import Part, Patches
from mindrlhf_msprobe.integrations.session import Session, begin, ignored_by
from mindrlhf_msprobe.log import inform
from mindrlhf_msprobe.phases import LOSS_INPUTS

_TRAINER = message("trainer.ppo")
_GENERATE = "actor_generate_sequences"
_LOG_PROB = "actor_compute_log_prob"
_VALUES = "critic_compute_values"
_REFERENCE = "reference_compute_log_prob"
_UPDATES = ("actor_update", "critic_update")
_REWARD = "reward_compute"  # recorded where msprobe_config.phases declares it

#: What is recorded of the loss, by what MindRLHF calls it in methods of its PPO_model.
_OF_LOSS = {
    "construct": (
        ("logprobs", "log_prob"),
        ("approx_kl", "kl_loss"),
        ("pg_loss", "actor_loss"),
        ("vf_loss", "value_loss"),
    ),
    "get_vfloss_and_pgloss": (("ratio", "ratio"),),
}
#: What the train cell returns, in this order.
_OF_TRAIN_STEP = ("loss", "lr", "overflow", "loss_scale")
_OF_UPDATE = (*_OF_TRAIN_STEP, *(key for of in _OF_LOSS.values() for _, key in of), LOSS_INPUTS)

#: The tokens that old_log_prob is of.
_OLD_TOKENS = "old_log_prob_tokens"

#: The arguments of PPOTrainer, in their order.
_CONFIGS = (
    *("ppo_config", "sft_model_config", "ref_model_config"),
    *("critic_model_config", "rm_model_config"),
)

#: What is recorded of a call's result: key → value.
_OfResult = Callable[[Any], Mapping[str, Any]]


def install_ppo(module: ModuleType) -> None:
    """Record the trainings of the PPOTrainer that a module defines."""
    _Integration(module.PPOTrainer).install()


class _Integration:
    """What the methods of one PPOTrainer class do beside their own work.

    A step is the making of experience and the training with it; where a script does one of them
    alone, that.
    """

    def __init__(self, trainer: type) -> None:
        self._class = trainer
        self._patches = Patches(_TRAINER)
        self._generation = MindFormersGeneration(self._patches)
        self._calls: dict[int, tuple[str, _OfResult]] = {}  # of networks, by their id
        self._networks: list[Any] = []  # keeps those ids
        self._train_step: Any = None
        self._loss_values: LossValues | None = None
        self._making_experience = self._step_open = False

    def install(self) -> None:
        """Wrap the methods; what is missing is said when a training is recorded."""
        experience = (
            *(_LOG_PROB, _REFERENCE, _VALUES),
            *("old_log_prob", _OLD_TOKENS, "ref_log_prob", "values", "scores"),
            *("rewards", "advantages", "returns"),
        )
        generated = (_GENERATE, "prompts", "responses", *KEYS)
        recorded = self._patches.while_recorded
        no_generation = message("trainer.no_generation", phase=_GENERATE)
        no_experience, no_update = message("trainer.no_experience"), message("trainer.no_update")
        for name, around, without, lost in (
            ("__init__", self._around_init, message("trainer.no_recording"), ()),
            ("generate", recorded(self._around_generate), no_generation, generated),
            ("make_experience", recorded(self._around_experience), no_experience, experience),
            ("train", recorded(self._around_train), no_update, (*_UPDATES, *_OF_UPDATE)),
        ):
            self._patches.wrap(
                self._class,
                name,
                around,
                without=without,
                lost=lost,
                raises=(ConfigError, RunError),
            )
        with suppress(NotThere):
            self._patches.play(self._class, "generate")

    def _around_init(self, trainer: Any, *args: Any, **kwargs: Any) -> Part:
        configs = {**dict(zip(_CONFIGS, args)), **kwargs}
        self._begin(configs.get("ppo_config"))
        session = self._patches.session
        if session is None:
            return
        try:
            yield
        except BaseException as error:
            session.probe.__exit__(type(error), error, error.__traceback__)
            self._end()
            raise
        self._watch(session, trainer)
        session.probe.save_configs({name: plain(config) for name, config in configs.items()})

    def _begin(self, config: Any) -> None:
        """Begin to record a training, if its configuration says so."""
        if (earlier := self._patches.session) is not None:
            self._finish()
            earlier.probe.close()
        self._end()
        self._patches.record(begin(SimpleNamespace(**{SECTION: _section(config)}), _TRAINER))
        if self._patches.session is not None:
            atexit.register(self._finish)  # before the probe's own end

    def _end(self) -> None:
        atexit.unregister(self._finish)
        if self._loss_values is not None:
            self._loss_values.remove()
        self._patches.record(None)
        self._train_step = self._loss_values = None
        self._calls, self._networks = {}, []
        self._generation.end()
        self._making_experience = self._step_open = False

    def _finish(self) -> None:
        """End the step of an experience that no training followed."""
        if (session := self._patches.session) is not None and self._step_open:
            self._step_open = False
            if getattr(sys, "last_value", None) is None:
                session.probe.step()

    def _watch(self, session: Session, trainer: Any) -> None:
        for phase in (_GENERATE, _LOG_PROB, _UPDATES[0]):
            session.watch(phase, trainer, "ppo_model.policy_model")
        session.watch(_REFERENCE, trainer, "ref_model")
        for phase in (_VALUES, _UPDATES[1]):
            if getattr(trainer, "is_shared_backbone", False):
                session.probe.leave_out(phase, message("trainer.shared_backbone"))
            else:
                session.watch(phase, trainer, "ppo_model.critic_model")
        if _REWARD in session.probe.config.phases:
            session.watch(_REWARD, trainer, "reward_fn")
        model = getattr(trainer, "ppo_model", None)
        policy = getattr(getattr(model, "policy_model", None), "model", None)
        config = getattr(trainer, "ppo_config", None)
        names = "max_decode_length", "max_prompt_length"
        widths = as_widths(*(getattr(config, name, 0) for name in names))
        self._generation.watch(session, policy, widths)
        if model is not None and session.probe.config.key_data_dump:
            self._loss_values = LossValues(session, model, _OF_LOSS)
        for network, phase, of_result in (
            (getattr(model, "policy_model", None), _LOG_PROB, _log_prob_and_values),
            (getattr(model, "critic_model", None), _VALUES, lambda values: {"values": values}),
            (
                getattr(trainer, "ref_model", None),
                _REFERENCE,
                lambda found: {"ref_log_prob": found[0] if isinstance(found, tuple) else found},
            ),
            (getattr(trainer, "reward_fn", None), _REWARD, lambda scores: {"scores": scores}),
        ):
            if network is not None:
                self._networks.append(network)
                self._calls[id(network)] = phase, of_result
                around = self._patches.while_recorded(self._around_call)
                self._patches.wrap(type(network), "__call__", around, without="")

    def _around_generate(self, session: Session, _: Any, *args: Any, **kwargs: Any) -> Part:
        with session.phase(_GENERATE), self._generation.generating():
            _, responses, *_ = yield
        prompts = args[0] if args else kwargs.get("input_ids")
        session.probe.save_data({"prompts": prompts, "responses": responses})

    def _around_call(self, session: Session, network: Any, *_: Any, **kwargs: Any) -> Part:
        found = self._calls.get(id(network))
        if found is None or not self._making_experience:
            return
        phase, of_result = found
        with session.phase(phase):
            result = yield
        session.probe.save_data(of_result(result))
        if phase == _LOG_PROB and (samples := kwargs.get("samples")) is not None:
            session.probe.save_data(_OLD_TOKENS, samples)

    def _around_experience(self, session: Session, trainer: Any, *_: Any, **__: Any) -> Part:
        self._finish()  # the step before was not trained with
        self._step_open = self._making_experience = True
        try:
            yield
        finally:
            self._making_experience = False
        for name in ("rewards", "advantages", "returns"):
            rows: Any = [getattr(element, name) for element in trainer.store]
            with suppress(ValueError):  # rows of different lengths stay a list
                rows = np.stack(rows)
            session.probe.save_data(name, rows)

    def _around_train(self, session: Session, _: Any, *args: Any, **kwargs: Any) -> Part:
        train_step = args[0] if args else kwargs.get("ppo_with_grad")
        if train_step is not self._train_step:
            self._train_step = train_step
            session.watch_optimizer(_UPDATES, getattr(train_step, "optimizer", None))
            missing = message("trainer.no_update")
            around = self._patches.while_recorded(self._around_update)
            self._patches.wrap(type(train_step), "__call__", around, without=missing)
        self._step_open = False  # a training that raises leaves the step unfinished
        yield
        session.probe.step()

    def _around_update(self, session: Session, cell: Any, *args: Any, **kwargs: Any) -> Part:
        if cell is not self._train_step:
            return
        values = self._loss_values
        once = nullcontext() if values is None else values.of_one_update(cell, args, kwargs)
        with once, session.phase(*_UPDATES):
            result = yield
        session.probe.save_data(returned_by_name(_OF_TRAIN_STEP, result))


def _section(config: Any) -> Any:
    """Return the section, from where it stands; None where it stands nowhere.

    Raises:
        ConfigError: a value in it is wrong.
    """
    own = getattr(config, SECTION, None)
    if own is not None:
        return own
    path = getattr(config, "sft_model_path", None)
    try:
        content = read_yaml(Path(path)) if path else {}
    except ConfigError:  # MindRLHF's to say
        content = {}
    if SECTION not in content:
        inform("log.no_section_in_file", trainer=_TRAINER, section=SECTION, path=str(path))
        return None
    return load_config(path, ignore=ignored_by(_TRAINER))


def _log_prob_and_values(result: Any) -> dict[str, Any]:
    """The policy returns both where critic and actor share their backbone."""
    if isinstance(result, tuple):
        return {"old_log_prob": result[0], "values": result[1]}
    return {"old_log_prob": result}
