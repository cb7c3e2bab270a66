"""Generation under vLLM (`use_vllm: 1`): its network, what it draws with, its log-probabilities.

Written from the sources of MindRLHF (e8a8fc1, mindrlhfDemo01), vLLM 0.8.4 and vLLM-MindSpore 0.3.0,
and tested with stand-ins of their names: it needs an Ascend device to run. MindRLHF launches vLLM
with `external_launcher`, so that the worker and its network live in the trainer's process:

- `Worker.load_model` has built the network when it returns, and nothing has run yet, which is when
  the network is watched: soon after, vLLM runs it once to see how much memory it takes, and what is
  compiled then takes no probes any more. `Worker.get_model` returns vLLM-MindSpore's model, whose
  `network` is the cell.
- `LLM.apply_model` reaches the same model later.
- `LLM.generate` is given the sampling parameters, and returns a `RequestOutput` for each prompt, in
  their order; MindRLHF takes `outputs[0].token_ids` of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from types import ModuleType
from typing import Any

from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.integrations.mindrlhf.generation import (
    KEYS,
    LOG_PROB,
    as_widths,
    leave_out_rollout,
    save_rollout,
)
from mindrlhf_msprobe.integrations.patches import Part, Patches, when_imported
from mindrlhf_msprobe.integrations.session import Session
from mindrlhf_msprobe.log import warn
from mindrlhf_msprobe.phases import GENERATE

#: Arguments that hold blocks of all requests there may be, most of them never written.
_CACHES = frozenset({"key_cache", "value_cache"})
_NETWORK = "network"  # of vLLM-MindSpore's models
_ENGINE = "inference_engine"  # of MindRLHF's InferWorker
_RUNNER = "llm_engine.model_executor.driver_worker.worker.model_runner"
_NOT_ASKED = message("trainer.no_logprobs")
_NO_GENERATE = message("trainer.no_vllm_generate", key=LOG_PROB)


class VllmGeneration:
    """What vLLM's methods do beside their own work.

    Args:
        patches: wraps them.
        session: returns the training that is recorded, or None.
    """

    def __init__(self, patches: Patches, session: Callable[[], Session | None]) -> None:
        self._patches = patches
        self._session = session
        self._building = False
        self._model: Any = None
        self._engine: Any = None
        self._widths = (0, 0)

    def install(self) -> None:
        """Look at the modules of vLLM when they are imported, which MindRLHF does late."""
        when_imported("vllm", self._prepare)

    def end(self) -> None:
        """Forget the engine of a training that has ended."""
        self._model = self._engine = None

    @contextmanager
    def building(self) -> Iterator[None]:
        """Take the network that is loaded in this context for the one that generates."""
        self._building = True
        try:
            yield
        except Exception:
            session = self._session()
            if self._model is not None and session is not None and session.records(GENERATE):
                warn("log.vllm_failed")
            raise
        finally:
            self._building = False

    def watch(self, session: Session, worker: Any, *, generates: bool) -> None:
        """Watch the network of a worker that has been built.

        Args:
            worker: MindRLHF's InferWorker.
            generates: whether vLLM generates, not only builds the network.
        """
        if self._model is None:
            self._watch_late(session, worker)
        if not generates:
            return
        engine = getattr(worker, _ENGINE, None)
        kind = type(engine)
        if engine is None:
            missing = f"{type(worker).__name__}.{_ENGINE}"
            self._patches.note_missing(missing, _NO_GENERATE, KEYS)
        else:
            self._engine = engine
            self._widths = widths_of(worker)
            self._patches.wrap(
                kind, "generate", self._around_generate, otherwise=_NO_GENERATE, lost=KEYS
            )
        self._patches.report(session.note_lost)

    def _prepare(self, module: ModuleType) -> None:
        """Wrap the loading of a model, in each class that is a worker of vLLM."""
        for value in list(vars(module).values()):
            # By its type: a lazy module must not be asked for its class.
            if not issubclass(type(value), type) or value.__module__ != module.__name__:
                continue
            own = vars(value)
            if "get_model" in own and inspect.isfunction(own.get("load_model")):
                self._patches.wrap(value, "load_model", self._around_load, otherwise="")

    def _around_load(self, worker: Any, *_: Any, **__: Any) -> Part:
        yield
        session = self._session()
        if session is None or not self._building or self._model is not None:
            return
        model = worker.get_model()
        if _network_of(model) is not None:
            self._watch(session, model)

    def _watch(self, session: Session, model: Any) -> None:
        from mindrlhf_msprobe.capture.cells import leave_out_arguments

        self._model = model
        network = _network_of(model)
        leave_out_arguments(network, _CACHES)
        session.watch(GENERATE, model, "" if network is model else _NETWORK)

    def _watch_late(self, session: Session, worker: Any) -> None:
        """Find the network in an engine that has been built; say where it was looked for."""
        looked = [message("trainer.not_called", what="Worker.load_model (vLLM)")]
        at_runner = f"{_ENGINE}.{_RUNNER}.model"
        for where, find in (
            (f"{_ENGINE}.apply_model", lambda: _applied(worker)),
            (f"{at_runner}.{_NETWORK}", lambda: attrgetter(at_runner)(worker)),
            ("policy_model", lambda: worker.policy_model),
        ):
            try:
                model = find()
            except Exception as error:
                why = message("unread.raised", error=type(error).__name__, why=error)
                looked.append(message("trainer.raised", what=where, error=why))
                continue
            if _network_of(model) is not None:
                self._watch(session, model)
                return
            kind = type(model).__name__
            looked.append(message("trainer.holds_no_cell", what=where, kind=kind))
        session.probe.leave_out(
            GENERATE,
            message("trainer.no_vllm_network", worker=type(worker).__name__, looked=looked),
        )

    def _around_generate(self, engine: Any, *args: Any, **kwargs: Any) -> Part:
        session = self._session()
        if session is None or engine is not self._engine:
            return
        parameters = kwargs.get("sampling_params", args[1] if len(args) > 1 else None)
        given = _fields(parameters)
        # The seed of the engine, where the requests have none of their own.
        config: Any = getattr(getattr(engine, "llm_engine", None), "model_config", None)
        if hasattr(config, "seed"):
            given["engine_seed"] = config.seed
        session.probe.note_generation(given)
        outputs = yield
        answers = [request.outputs[0] for request in outputs]
        if not answers or any(answer.logprobs is None for answer in answers):
            leave_out_rollout(session, _NOT_ASKED)
            return
        tokens = [list(answer.token_ids) for answer in answers]
        prompts = [list(getattr(request, "prompt_token_ids", None) or ()) for request in outputs]
        log_probs = [
            [float(candidates[token].logprob) for token, candidates in zip(own, answer.logprobs)]
            for own, answer in zip(tokens, answers)
        ]
        save_rollout(session.probe, log_probs, tokens, prompts, self._widths)


def _network_of(model: Any) -> Any:
    """Return the cell of a model of vLLM-MindSpore, or the model if it is one; None of others."""
    from mindspore import nn

    return next(
        (m for m in (getattr(model, _NETWORK, None), model) if isinstance(m, nn.Cell)), None
    )


def _applied(worker: Any) -> Any:
    """Return the model through vLLM's public hook; of several workers, that of the first."""
    found: list[Any] = []
    returned = getattr(worker, _ENGINE).apply_model(found.append)
    if not found:
        raise LookupError(message("trainer.other_process", count=len(returned)))
    return found[0]


def _fields(parameters: Any) -> dict[str, Any]:
    """Return the sampling parameters by name; of a list, the first ones."""
    if isinstance(parameters, (list, tuple)):
        parameters = parameters[0] if parameters else None
    names: Sequence[str] = getattr(parameters, "__struct_fields__", ())  # msgspec
    if names:
        return {name: getattr(parameters, name, None) for name in names}
    found: Mapping[str, Any] = getattr(parameters, "__dict__", {})
    return dict(found)


def widths_of(worker: Any) -> tuple[int, int]:
    """Return how wide MindRLHF makes the tables of responses and of prompts; 0: not known."""
    config = getattr(getattr(worker, "grpo_config", None), "generate_config", None)
    sampling = getattr(config, "sampling_config", None)
    return as_widths(getattr(sampling, "max_tokens", 0), getattr(config, "max_prompt_length", 0))
