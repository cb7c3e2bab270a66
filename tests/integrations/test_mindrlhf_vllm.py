"""Generation under vLLM, here a stand-in with the names of vLLM and vLLM-MindSpore."""

import itertools
from functools import partial

import mindspore as ms
import numpy as np
import pytest
from drivers.standing_in import stand_in

from mindrlhf_msprobe import compare_runs, open_run
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.integrations import mindrlhf
from mindrlhf_msprobe.trends.reading import Choice, read_trends
from tests.integrations.test_mindrlhf_grpo import (  # noqa: F401  (fixtures)
    ALL,
    GRAPH,
    KEYS,
    OF_GENERATION,
    PHASES,
    PYNATIVE,
    _stand_in,
    configure,
    module,
)

pytestmark = pytest.mark.slow

GENERATE = "actor_generate_sequences"
LOG_PROB, TOKENS, ASKED = "rollout_log_prob", "rollout_tokens", "rollout_prompts"
CELLS = {"root", "lm_head", "model", "model.layers.0", "model.layers.1", "model.tok_embeddings"}


@pytest.fixture(autouse=True)
def _vllm():
    with stand_in("vllm", "vllm", "vllm_mindspore"):
        yield


@pytest.fixture
def train(tmp_path, configure):  # noqa: F811
    """Return a function that trains with vLLM for an epoch: it returns the run, and the result."""

    def start(name="run", section=ALL, *, mode=PYNATIVE, use_vllm=1, **sampling):
        main = module("main")
        configs = module("mindrlhf.configs.grpo_configs")
        configs.GenerateConfig.use_vllm = use_vllm
        for setting, value in sampling.items():
            setattr(configs.SamplingConfig, setting, value)
        result = main.train(configure(section, mode=mode, name=name, epochs=1))
        return open_run(tmp_path / name) if section else None, result

    return start


def ask_for_log_probs(monkeypatch):
    """Let MindRLHF's sampling parameters ask for them."""
    from vllm import SamplingParams

    build = SamplingParams.__init__
    monkeypatch.setattr(
        SamplingParams, "__init__", lambda self, **given: build(self, **given, logprobs=1)
    )


def hide_loading():
    """Let vLLM's classes have no method by which the loading of a model is noticed."""
    for home, name in (("gpu_worker", "Worker"), ("gpu_model_runner", "GPUModelRunner")):
        kind = getattr(module(f"vllm.v1.worker.{home}"), name)
        kind.load = kind.load_model
        kind.load_model = property(lambda self: self.load)


def test_the_network_what_it_draws_with_and_log_probabilities_are_recorded(train, monkeypatch):
    ask_for_log_probs(monkeypatch)
    _, plain = train("plain", section=None)
    mindrlhf.install()
    run, probed = train()
    assert probed == plain  # losses and weights
    assert run.finished
    assert not run.lost
    assert set(run.phases) == PHASES
    assert set(run.keys) == {*KEYS, LOG_PROB, TOKENS, ASKED}
    entries = run.entries(phase=GENERATE, step=1)
    assert {entry.cell for entry in entries} == CELLS
    assert {entry.token for entry in entries} <= {0, 1, 2}  # a pass each
    assert run.manifests[0]["generation"][GENERATE]["settings"] == {
        **{"n": 1, "temperature": 1.0, "top_k": -1, "seed": None, "max_tokens": 3},
        **{"stop_token_ids": [5], "logprobs": 1, "engine_seed": 0},
    }
    # Blocks of memory that nobody has written differ in any two runs: they are left out.
    for cell, blocks in (("root", "12"), ("model", ("key_cache", "value_cache"))):
        entry = next(e for e in run.entries(phase=GENERATE, step=0) if e.cell == cell)
        leaves = {record.path: record.leaf for record in entry.records if record.io == "input"}
        assert leaves["0"].shape
        assert all(leaves[path].opaque for path in blocks)
    responses = np.concatenate([data.value for data in run.key_data("responses")])
    saves = run.key_data(LOG_PROB)
    assert [data.micro_step for data in saves if data.step == 0] == [0, 1]  # a call each
    table = np.concatenate([data.value for data in saves])
    assert table.shape == responses.shape
    assert table.dtype == np.float32
    assert (table[responses != 0] < 0).all()
    after_the_end = np.cumsum(responses == 5, axis=1) - (responses == 5) > 0
    assert not table[after_the_end].any()
    tokens = np.concatenate([data.value for data in run.key_data(TOKENS)])
    assert tokens.dtype == np.int32
    assert (tokens == np.where(after_the_end, -1, responses)).all()
    given, prompts = (
        np.concatenate([data.value for data in run.key_data(key)]) for key in (ASKED, "prompts")
    )
    assert (given == prompts).all()
    again, _ = train("again")
    assert compare_runs(run.path, again.path).verdict.status == "identical"


def test_a_temperature_is_found_in_a_first_round(train, caplog):
    """Log-probabilities that nobody requested are coverage, which is said once a run."""
    mindrlhf.install()
    section = {"msprobe": True, "key_data_dump": True}
    runs = [train(name, section, temperature=t)[0] for name, t in (("a", 1.0), ("b", 0.3))]
    first = compare_runs(*(run.path for run in runs)).verdict.first_divergence
    assert (first.step, first.phase) == (0, GENERATE)
    checks = {check.what.name for check in first.check_first}
    assert f"{GENERATE}.temperature" in checks
    assert LOG_PROB not in runs[0].keys
    assert LOG_PROB in runs[0].manifests[0]["coverage"]["key_data"]
    said = [r.getMessage() for r in caplog.records if LOG_PROB in r.getMessage()]
    assert len(said) == 2
    assert "logprobs=1 in InferWorker.__init_use_vllm" in said[0]
    (missing,) = read_trends(runs[0], Choice(derived=("rollout_corr",))).missing
    assert missing.why == message("trainer.no_logprobs")


def test_what_is_compiled_with_dynamic_shapes_is_coverage_in_graph_mode(train, caplog):
    """It is watched before vLLM's first run compiles it; host functions take fixed shapes."""
    mindrlhf.install()
    run, _ = train(mode=GRAPH)
    assert run.finished
    assert not run.lost
    assert set(run.keys) == KEYS - OF_GENERATION
    assert "compiled already" not in caplog.text
    reasons = run.coverage()["graph_mode"]["actor"].values()
    assert message("coverage.dynamic_shape") in itertools.chain(*reasons)
    assert run.manifests[0]["generation"][GENERATE]["settings"]["temperature"] == 1.0


def test_a_network_that_is_not_noticed_when_it_is_loaded(train):
    """LLM.apply_model finds it later."""
    hide_loading()
    mindrlhf.install()
    run, _ = train(section={**ALL, "actor_train_dump": False, "reference_dump": False})
    assert run.phases == [GENERATE]
    assert set(run.keys) == KEYS - OF_GENERATION


def test_a_vllm_without_any_of_the_names_is_said_once(train, caplog):
    """Training goes on; the message names what was looked for, and where."""
    import vllm

    hide_loading()
    del vllm.LLM.apply_model
    vllm.LLM.answer = vllm.LLM.generate
    del vllm.LLM.generate
    worker = module("mindrlhf.worker.infer_worker").InferWorker
    build = worker._InferWorker__init_use_vllm

    def hidden(self):
        network = build(self)
        engine, self.inference_engine = self.inference_engine, vllm.LLM.__new__(vllm.LLM)
        self.inference_engine.llm_engine = object()
        self._vllm_generate = lambda prompts: engine.answer(None, self.sampling_params, prompts)
        self.hidden = network
        return ms.Tensor([0.0])

    worker._InferWorker__init_use_vllm = hidden
    model = module("mindrlhf.worker.infer_worker").GRPOModelInfer
    module("mindrlhf.worker.infer_worker").GRPOModelInfer = lambda config, _: model(
        config, module("mindrlhf.models.grpo_models").CausalLMHybrid()
    )
    trainer = module("mindrlhf.trainer.spmd.grpo_trainer").GRPOTrainer
    trainer._reshard_train_to_infer = lambda self: None
    mindrlhf.install()
    run, _ = train()
    assert run.finished
    assert set(run.phases) == PHASES - {GENERATE}
    assert set(run.keys) == KEYS - OF_GENERATION
    messages = [r.getMessage() for r in caplog.records]
    said = [text for text in messages if "with which vLLM generates was not found" in text]
    assert len(said) == 1
    for place in ("Worker.load_model", "apply_model", "driver_worker", "policy_model"):
        assert place in said[0]
    assert sum("LLM.generate is missing" in text for text in messages) == 1
    coverage = run.manifests[0]["coverage"]
    assert set(coverage["phases"]) == {GENERATE}
    assert LOG_PROB in coverage["key_data"]


def test_an_engine_that_cannot_be_built_raises_as_it_would(train, caplog):
    worker = module("vllm.v1.worker.gpu_worker").Worker

    def fails(self):
        raise RuntimeError("not compiled")

    worker.determine_available_memory = fails
    mindrlhf.install()
    with pytest.raises(RuntimeError, match="not compiled"):
        train()
    assert "actor_infer_dump: false leaves it as it is" in caplog.text


def test_mindformers_generating_with_vllms_network(train, caplog):
    """use_vllm: 2. That network has no method in which tokens are chosen."""
    network = module("vllm_mindspore.model_executor.models.mf_models.qwen2").ParallelQwenForCausalLM
    language_model = module("mindrlhf.models.grpo_models").LanguageModel

    def generate(self, prompts, max_new_tokens):
        logits = lambda tokens: self.lm_head(self(tokens))  # noqa: E731
        logits.postprocess = partial(language_model.postprocess, logits)
        return language_model.generate(logits, prompts, max_new_tokens)

    network.generate = generate
    property_of_model = module("mindrlhf.worker.infer_worker").InferWorker
    before = property_of_model.generate

    def on_the_network(self, ids, max_tokens=0):
        policy = self.grpo_model_infer.grpo_model.policy_model
        policy.model.generate = policy.generate
        return before(self, ids, max_tokens)

    property_of_model.generate = on_the_network
    mindrlhf.install()
    run, _ = train(use_vllm=2)
    assert set(run.phases) == PHASES
    assert {LOG_PROB, TOKENS, ASKED} <= set(run.manifests[0]["coverage"]["key_data"])
    assert "is not the version" not in caplog.text
