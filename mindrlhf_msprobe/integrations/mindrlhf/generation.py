"""Generation by MindFormers: the log-probability of each token, where the token is chosen.

MindFormers' `generate` calls `postprocess` with the logits of each pass; it returns the tokens that
it takes. In between the logits are copied to the host, and the log-softmax of them at the token is
kept: of the network's own logits, divided by the temperature where one is drawn with. What takes
tokens away (top-k, top-p, a least length) and penalties are not in it, as they are not in the
log-probabilities of the training network. Nothing of what MindFormers computes is touched.

Under vLLM (`use_vllm: 1`) what it draws with and its own log-probabilities are taken.
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.errors import NotThere
from mindrlhf_msprobe.integrations.patches import Part, Patches, when_imported
from mindrlhf_msprobe.integrations.session import Session
from mindrlhf_msprobe.log import warn
from mindrlhf_msprobe.phases import GENERATE
from mindrlhf_msprobe.probe import Probe

if TYPE_CHECKING:
    import numpy as np

LOG_PROB = "rollout_log_prob"
#: What they are of: MindRLHF gathers prompts and responses over ranks, and these are one's own.
PROMPTS, TOKENS = "rollout_prompts", "rollout_tokens"
KEYS = (LOG_PROB, PROMPTS, TOKENS)
_BEHIND = -1  # no token


def save_rollout(
    probe: Probe,
    log_probs: Sequence[Sequence[float]],
    tokens: Sequence[Sequence[int]],
    prompts: Sequence[Sequence[int]],
    widths: tuple[int, int] = (0, 0),
) -> None:
    """Save what one call generated: a row a sample, filled up behind its end.

    Args:
        log_probs: of each token of a response, in nats; saved as float32 [samples, tokens], 0
            behind the end.
        tokens: their ids; int32 [samples, tokens], −1 behind the end.
        prompts: the ids before them; int32 [samples, tokens], −1 behind the end.
        widths: how many columns responses and prompts have at least.
    """
    probe.save_data(
        {
            LOG_PROB: _table(log_probs, widths[0], "float32", 0),
            TOKENS: _table(tokens, widths[0], "int32", _BEHIND),
            PROMPTS: _table(prompts, widths[1], "int32", _BEHIND),
        }
    )


def as_widths(response: Any, prompt: Any) -> tuple[int, int]:
    """Return the widths of both tables as a configuration has them; 0 for what is no number."""
    known = [width if isinstance(width, int) else 0 for width in (response, prompt)]
    return known[0], known[1]


def leave_out_rollout(session: Session, why: Message) -> None:
    """Say that the log-probabilities of what is generated cannot be recorded, and why."""
    session.probe.leave_out_data(LOG_PROB, why)
    note_rollout_lost(session, why)


def note_rollout_lost(session: Session, why: Message) -> None:
    """Write down that nothing of what is generated is recorded; it was said before."""
    for key in KEYS:
        session.note_lost(key, why)


def _table(rows: Sequence[Sequence[Any]], width: int, dtype: str, filling: int) -> Any:
    """Return rows as an array [rows, width or more], filled up behind their ends."""
    import numpy as np  # what is off imports nothing

    table = np.full((len(rows), max(width, *map(len, rows))), filling, dtype)
    for to_fill, row in zip(table, rows):
        to_fill[: len(row)] = row
    return table


_WITHOUT = message("trainer.no_log_prob", key=LOG_PROB)
_TEMPERATURE = "TemperatureLogitsWarper"  # MindFormers' class


class MindFormersGeneration:
    """What the methods of a network that generates do beside their own work.

    Args:
        patches: wraps them.
    """

    def __init__(self, patches: Patches) -> None:
        self._patches = patches
        self._model: Any = None
        self._widths = (0, 0)
        self._generates = False
        self._batch: _Batch | None = None

    def watch(
        self, session: Session, model: Any, widths: tuple[int, int], *, own: bool = True
    ) -> None:
        """Take the log-probabilities of what a network generates from now on.

        Args:
            model: has MindFormers' `generate` and `postprocess`.
            widths: how wide the trainer makes the tables of responses and of prompts; 0: not known.
            own: whether it is of a class that should have them.
        """
        config = session.probe.config
        if model is None or not config.key_data_dump:
            return
        if config.rollout_from:
            why = message("coverage.rollout_played", path=config.rollout_from)
            return note_rollout_lost(session, why)
        if not own and not hasattr(type(model), "postprocess"):
            why = message("trainer.no_method", of=type(model).__name__, method="postprocess")
            return note_rollout_lost(session, why)
        self._model = model
        self._widths = widths
        for method, around in (
            ("generate", self._around_generate),
            ("postprocess", self._around_postprocess),
        ):
            around = self._patches.while_recorded(around)
            self._patches.wrap(type(model), method, around, without=_WITHOUT, lost=KEYS)
        self._patches.report(session.note_lost)

    def end(self) -> None:
        """Forget the network of a training that has ended."""
        self._model = self._batch = None

    @contextmanager
    def generating(self) -> Iterator[None]:
        """Take what is generated in this context for a rollout."""
        self._generates = True
        try:
            yield
        finally:
            self._generates = False

    def _around_generate(self, session: Session, model: Any, *_: Any, **__: Any) -> Part:
        if model is not self._model or not self._generates:
            return
        self._batch = batch = _Batch()
        try:
            outputs = yield
        finally:
            self._batch = None
        why = batch.why or batch.mistaken(outputs)
        if why is not None:
            leave_out_rollout(session, why)
            return
        save_rollout(
            session.probe, batch.log_probs, batch.tokens, batch.prompts, widths=self._widths
        )

    def _around_postprocess(self, session: Session, model: Any, *args: Any, **kwargs: Any) -> Part:
        batch = self._batch
        if batch is None or batch.why is not None or model is not self._model:
            return
        bound = inspect.signature(type(model).postprocess).bind(model, *args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        try:
            going = batch.going(given)
            logits = _logits(model, given, going)
        except NotThere as error:
            batch.why = error.said
            return
        chosen, *_ = yield
        batch.add(going, logits, [int(chosen[row]) for row in going])


class _Batch:
    """What one call of `generate` has generated so far, a row a sample.

    Attributes:
        prompts, tokens, log_probs: by row.
        why: the log-probabilities cannot be had; None while they can.
    """

    def __init__(self) -> None:
        self.prompts: list[list[int]] = []
        self.tokens: list[list[int]] = []
        self.log_probs: list[list[float]] = []
        self.why: Message | None = None

    def going(self, given: dict[str, Any]) -> list[int]:
        """Return the rows of a pass that have not ended before it."""
        ids, lengths = given["input_ids"], given["valid_length_each_example"]
        if not self.prompts:
            self.prompts = [
                [int(token) for token in row[: int(length)]] for row, length in zip(ids, lengths)
            ]
            self.tokens = [[] for _ in self.prompts]
            self.log_probs = [[] for _ in self.prompts]
        return [row for row, ended in enumerate(given["is_finished"]) if not ended]

    def add(self, rows: Sequence[int], logits: np.ndarray, tokens: Sequence[int]) -> None:
        """Add the token of each row.

        Args:
            logits: float32 [rows, vocabulary], divided by the temperature.
        """
        import numpy as np

        with np.errstate(all="ignore"):  # of logits that are not finite
            top = logits.max(axis=-1, keepdims=True)
            totals = np.exp(logits - top).sum(axis=-1, dtype=np.float64)
            of_tokens = logits[np.arange(len(rows)), tokens].astype(np.float64)
            found = of_tokens - top[:, 0] - np.log(totals)
        for row, token, log_prob in zip(rows, tokens, found.tolist()):
            self.tokens[row].append(token)
            self.log_probs[row].append(log_prob)

    def mistaken(self, outputs: Any) -> Message | None:
        """Return why these are not the tokens that `generate` returned; None if they are."""
        sequences = getattr(outputs, "sequences", outputs)
        if not self.prompts:
            return message("trainer.no_postprocess")
        own = [prompt + tokens for prompt, tokens in zip(self.prompts, self.tokens)]
        if [[int(token) for token in row] for row in sequences] != own:
            return message("trainer.other_tokens")
        return None


def _logits(model: Any, given: dict[str, Any], rows: Sequence[int]) -> np.ndarray:
    """Return the logits of the next token of some samples, float32 [rows, vocabulary]; a copy.

    They are divided by the temperature that the token is drawn with.

    Raises:
        NotThere: the network returns something else.
    """
    import numpy as np

    from mindrlhf_msprobe.capture.tensors.summary import to_host

    if getattr(model.config, "is_sample_acceleration", False):
        raise NotThere.saying("trainer.sample_acceleration")
    result = given["res"]
    host = to_host(result[0] if isinstance(result, tuple) else result)
    logits = host.values()
    logits = logits.reshape(-1, logits.shape[-1])
    index, at = given["current_index"], np.asarray(rows, np.int64)
    if given["need_gather_logits"] and index is not None and len(logits) > len(index):
        at = np.asarray(index)[at]
    found = logits[at].astype(np.float32)
    for warper in given["logits_warper"] or ():
        if type(warper).__name__ == _TEMPERATURE:
            found /= np.float32(warper.temperature)
    return found


#: Arguments that hold blocks of all requests there may be, most of them never written.
_CACHES = frozenset({"key_cache", "value_cache"})
_NETWORK = "network"  # of vLLM-MindSpore's models
_ENGINE = "inference_engine"  # of MindRLHF's InferWorker
_RUNNER = "llm_engine.model_executor.driver_worker.worker.model_runner"
_NO_LOGPROBS = message("trainer.no_logprobs")
_NO_GENERATE = message("trainer.no_vllm_generate", key=LOG_PROB)


class VllmGeneration:
    """What vLLM's methods do beside their own work.

    Args:
        patches: wraps them.
    """

    def __init__(self, patches: Patches) -> None:
        self._patches = patches
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
            session = self._patches.session
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
        if engine is None:
            missing = f"{type(worker).__name__}.{_ENGINE}"
            self._patches.note_missing(missing, _NO_GENERATE, KEYS)
        else:
            self._engine = engine
            self._widths = widths_of(worker)
            around = self._patches.while_recorded(self._around_generate)
            self._patches.wrap(type(engine), "generate", around, without=_NO_GENERATE, lost=KEYS)
        self._patches.report(session.note_lost)

    def _prepare(self, module: ModuleType) -> None:
        """Wrap the loading of a model, in each class that is a worker of vLLM."""
        for value in list(vars(module).values()):
            # By its type: looking at its class would load a lazy module.
            if not issubclass(type(value), type) or value.__module__ != module.__name__:
                continue
            own = vars(value)
            if "get_model" in own and inspect.isfunction(own.get("load_model")):
                self._patches.wrap(value, "load_model", self._around_load, without="")

    def _around_load(self, worker: Any, *_: Any, **__: Any) -> Part:
        yield
        session = self._patches.session
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

    def _around_generate(self, session: Session, engine: Any, *args: Any, **kwargs: Any) -> Part:
        if engine is not self._engine:
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
            leave_out_rollout(session, _NO_LOGPROBS)
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
    return {**getattr(parameters, "__dict__", {})}


def widths_of(worker: Any) -> tuple[int, int]:
    """Return how wide MindRLHF makes the tables of responses and of prompts; 0: not known."""
    config = getattr(getattr(worker, "grpo_config", None), "generate_config", None)
    sampling = getattr(config, "sampling_config", None)
    return as_widths(getattr(sampling, "max_tokens", 0), getattr(config, "max_prompt_length", 0))
