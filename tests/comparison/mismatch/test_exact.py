"""`mismatch --exact`: a certificate that is given only where nothing was left out."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field

import numpy as np
import pytest
from helpers.snapshots import rewrite

from mindrlhf_msprobe import Probe
from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.comparison.mismatch.find import find_mismatch

HIDDEN, PAD = 8, 0
PROMPTS = [[3, 1, 4], [2, 7, 1, 8], [6, 2]]
RESPONSES = [[5, 9, 2, 6], [8, 3], [9, 9, 4]]
TOKENS = sum(map(len, RESPONSES))
WIDTH = max(map(len, RESPONSES))
CONFIG = {
    "msprobe": True,
    "task": "tensor",
    "actor_infer_dump": True,
    "actor_train_dump": True,
    "key_data_dump": True,
    "configurations_dump": True,
    "token_range_end": 99,
    "step_end": 9,
    "directions": ["forward"],
}


def filled(rows, width, value=PAD):
    """Return rows of one width."""
    return np.array([(list(row) + [value] * width)[:width] for row in rows], np.int32)


@dataclass
class Plan:
    """What one step records; tests change some of it.

    Attributes:
        given: what the training network is given as responses.
        saved: what is saved, by key; None: not at all.
        phases: those that are run.
        before: is given both networks before the step.
        at_token: is given them, and the number of the token, while the rollout runs.
    """

    given: list = field(default_factory=lambda: RESPONSES)
    saved: dict = field(default_factory=dict)
    phases: tuple = ("actor_generate_sequences", "actor_compute_log_prob")
    before: object = None
    at_token: object = None

    def __post_init__(self):
        size = np.arange(WIDTH) < np.array([*map(len, RESPONSES)])[:, None]
        values = -np.random.default_rng(1).exponential(1, (3, WIDTH)).astype(np.float32) * size
        ids = [[np.array(row) for row in rows] for rows in (PROMPTS, RESPONSES)]
        usual = {"prompts": ids[0], "responses": ids[1], "response_mask": size.astype(np.int32)}
        usual |= {"rollout_log_prob": values, "old_log_prob": values.copy()}
        self.saved = {**usual, **self.saved}


def networks():
    """Return two networks with the same weights, which compute each token by itself."""
    from mindspore import Tensor, nn, ops

    class Network(nn.Cell):
        def __init__(self):
            super().__init__()
            self.embedding, self.inner = nn.Embedding(10, HIDDEN), nn.Dense(HIDDEN, HIDDEN)
            self.head = nn.Dense(HIDDEN, 10)

        def construct(self, input_ids, position_ids=None):
            return self.head(ops.tanh(self.inner(self.embedding(input_ids))))

    both = Network(), Network()
    random = np.random.default_rng(2)
    for mine, theirs in zip(*(net.trainable_params() for net in both)):
        value = random.normal(0, 0.5, mine.shape).astype(np.float32)
        mine.set_data(Tensor(value))
        theirs.set_data(Tensor(value))
    return both


def recorded(path, *plans, close=True, **section):
    """Record a step for each plan, of rank 0."""
    from mindspore import Tensor

    rollout, training = networks()
    with Probe.from_config({**CONFIG, "dump_path": str(path), **section}) as probe:
        probe.watch(actor=training)
        probe.save_configs({"actor": {"pad_token_id": PAD}})
        for number, plan in enumerate(plans, start=1):
            if plan.before is not None:
                plan.before(rollout, training)
            if plan.phases[0] == "actor_generate_sequences":
                with probe.phase("actor_generate_sequences", model=rollout):
                    generated(rollout, plan, lambda: (rollout, training))
            if "actor_compute_log_prob" in plan.phases:
                rows = filled([p + r for p, r in zip(PROMPTS, plan.given)], 9)
                with probe.phase("actor_compute_log_prob"):
                    training(Tensor(rows))
            for key, value in plan.saved.items():
                if value is not None:
                    for one in value if isinstance(value, tuple) else (value,):
                        probe.save_data(key, one if isinstance(one, list) else Tensor(one))
            if close or number < len(plans):
                probe.step()
    return path


def generated(rollout, plan, both):
    """Run the rollout: prompts that end in one column, then a token of each sample."""
    from mindspore import Tensor

    size = max(map(len, PROMPTS))
    padded = [[PAD] * (size - len(p)) + p for p in PROMPTS]
    places = [[0] * (size - len(p)) + [*range(len(p))] for p in PROMPTS]
    rollout(*(Tensor(np.array(of, np.int32)) for of in (padded, places)))
    for at in range(WIDTH - 1):
        if plan.at_token is not None:
            plan.at_token(*both(), at)
        tokens = [[r[at] if at < len(r) else PAD] for r in RESPONSES]
        rollout(
            *(Tensor(np.array(of, np.int32)) for of in (tokens, [[len(p) + at] for p in PROMPTS]))
        )


def certified(path, *others, **options):
    """Return the certificate of a run."""
    return find_mismatch(path, *others, exact=True, **options).certificate


def test_one_computation_is_certified(tmp_path, capsys):
    """Exit code 0, on the console, as JSON, in both languages and from Python."""
    run = recorded(tmp_path / "run", Plan(), Plan())
    proof = certified(run)
    assert proof, proof
    assert proof.counts == {
        **{"sampled": 2 * TOKENS, "aligned": 2 * TOKENS, "compared": 2 * TOKENS},
        **{"unequal": 0, "non_finite": 0, "weights": 10, "weights_different": 0},
        "weights_unknown": 0,
    }
    assert main(["mismatch", "--exact", str(run)]) == 0
    assert capsys.readouterr().out.startswith("EXACT: ")
    assert main(["mismatch", str(run), "--exact", "--lang", "zh"]) == 0
    assert "逐位相同（EXACT）" in capsys.readouterr().out
    assert main(["mismatch", "--exact", str(run), "--json", "-o", str(tmp_path / "out")]) == 0
    shown = json.loads(capsys.readouterr().out)["certificate"]
    assert shown["exact"] is True
    assert [(one["step"], one["exact"]) for one in shown["places"]] == [(0, True), (1, True)]
    held = json.loads((tmp_path / "out" / "mismatch.json").read_text("utf-8"))
    assert held["certificate"] == shown
    assert "certificate" not in find_mismatch(run).to_json()


def test_by_sketches_too(tmp_path):
    """Fingerprints of rows and weights are exact."""
    assert certified(recorded(tmp_path / "run", Plan(), task="sketch"))


def changed(key, change):
    """Return a plan of which one saved array is changed in place."""
    plan = Plan()
    plan.saved[key] = change(plan.saved[key].copy())
    return plan


def put(row, place, value):
    def change(array):
        array[row, place] = value
        return array

    return change


def test_zeros_of_either_sign_are_one_value(tmp_path):
    """As everywhere: a probability of 1 is 0.0 or -0.0."""
    plan = changed("rollout_log_prob", put(0, 0, 0.0))
    plan.saved["old_log_prob"] = put(0, 0, -0.0)(plan.saved["old_log_prob"].copy())
    assert certified(recorded(tmp_path / "run", plan))


def test_what_the_mask_leaves_out_need_not_be_equal(tmp_path):
    """What a tool wrote into a response was not sampled."""
    plan = changed("rollout_log_prob", put(0, 1, np.nan))
    plan.saved["response_mask"] = put(0, 1, 0)(plan.saved["response_mask"].copy())
    proof = certified(recorded(tmp_path / "run", plan))
    assert proof, proof
    assert proof.counts["sampled"] == TOKENS - 1


def low(array):
    from mindspore import Tensor, bfloat16

    return Tensor(array).astype(bfloat16)


def test_bfloat16_is_compared_as_it_was_saved(tmp_path):
    """Equal where both are; one that is rounded alone is not."""
    plan = Plan()
    plan.saved |= {key: low(plan.saved[key]) for key in ("rollout_log_prob", "old_log_prob")}
    assert certified(recorded(tmp_path / "both", plan))
    plan = changed("old_log_prob", lambda a: np.where(a != 0, -1.5, a).astype(np.float32))
    plan.saved["rollout_log_prob"] = low(plan.saved["old_log_prob"])
    proof = certified(recorded(tmp_path / "one", plan))
    assert not proof
    assert proof.counts["unequal"] == TOKENS


def other_weight(rollout, training):
    from mindspore import Tensor

    value = rollout.inner.weight.asnumpy().copy()
    value[0, 0] = np.nextafter(value[0, 0], np.float32(9))
    rollout.inner.weight.set_data(Tensor(value))


def at_second_token(rollout, training, at):
    if at == 1:
        other_weight(rollout, training)


LOG_PROBS = ("rollout_log_prob", "old_log_prob")
USUAL = Plan().saved


def of_both(change):
    """Return a plan of which both networks' log-probabilities are changed."""
    return Plan(saved={key: change(USUAL[key].copy()) for key in LOG_PROBS})


def without_mask(change):
    """Return a plan that saves no mask, and other log-probabilities."""
    return Plan(saved={**of_both(change).saved, "response_mask": None})


def rows_of(*responses):
    return [np.array(row) for row in responses]


def next_float(array):
    return put(2, 0, np.nextafter(array[2, 0], np.float32(0)))(array)


def in_two(key):
    """Return what is saved first of a key, and what behind it."""
    return USUAL[key][:1], USUAL[key][1:]


OTHER_IDS = {
    "rollout_prompts": USUAL["prompts"],
    "rollout_tokens": USUAL["responses"],
    "responses": rows_of([5, 9, 2, 6], [8, 4], [9, 9, 4]),
}
SAVED_IN_TWO = {
    **{key: in_two(key) for key in ("rollout_log_prob", "response_mask")},
    "old_log_prob": USUAL["old_log_prob"][:1],
}
SOME_ROWS = {key: USUAL[key][:2] for key in (*LOG_PROBS, "response_mask")}
#: What is wrong: how it is planned, and the counts that say it.
WRONG = {
    "a log-probability": (
        lambda: changed("rollout_log_prob", put(0, 1, -0.25)),
        {"unequal": 1, "aligned": TOKENS},
    ),
    "the next float": (lambda: changed("old_log_prob", next_float), {"unequal": 1}),
    "NaN on both sides": (lambda: of_both(put(1, 0, np.nan)), {"unequal": 1, "non_finite": 1}),
    "infinite on both sides": (
        lambda: of_both(put(1, 0, -np.inf)),
        {"unequal": 0, "non_finite": 1},
    ),
    "a mask that hides all": (lambda: changed("response_mask", np.zeros_like), {"compared": 0}),
    "no log-probabilities of the rollout": (
        lambda: Plan(saved={"rollout_log_prob": None}),
        {"compared": 0, "aligned": 0},
    ),
    "no log-probabilities of the training": (
        lambda: Plan(saved={"old_log_prob": None}),
        {"compared": 0, "aligned": 0},
    ),
    "log-probabilities of some rows": (
        lambda: Plan(saved=dict(SOME_ROWS)),
        {"sampled": TOKENS, "aligned": 0},
    ),
    "log-probabilities of some tokens": (
        lambda: without_mask(lambda array: array[:, :3]),
        {"sampled": TOKENS, "aligned": TOKENS - 1},
    ),
    "zeros where none was recorded": (
        lambda: without_mask(put(0, slice(2, 4), 0.0)),
        {"sampled": TOKENS, "aligned": TOKENS - 2},
    ),
    "a save that was left out": (lambda: Plan(saved=dict(SAVED_IN_TWO)), {"aligned": 0}),
    "training on other ids": (
        lambda: Plan(given=[[5, 9, 4, 6], [8, 3], [9, 9, 4]]),
        {"sampled": TOKENS, "aligned": TOKENS - 2},
    ),
    "another last token": (
        lambda: Plan(given=[[5, 9, 2, 6], [8, 5], [9, 9, 4]]),
        {"sampled": TOKENS, "aligned": TOKENS - 1},
    ),
    "a response that the training never saw": (
        lambda: Plan(given=[[5, 9, 2, 6], [8, 3], []]),
        {"sampled": TOKENS, "aligned": TOKENS - 2},
    ),
    "ids that were tokenised again": (lambda: Plan(saved=dict(OTHER_IDS)), {"aligned": TOKENS - 2}),
    "other responses saved": (
        lambda: Plan(saved={"responses": rows_of([5, 9, 2, 6], [8, 3], [9, 7, 4])}),
        {"sampled": TOKENS, "aligned": TOKENS - 2},
    ),
    "another weight": (
        lambda: Plan(before=other_weight),
        {"weights_different": 1, "aligned": TOKENS, "unequal": 0},
    ),
}


@pytest.mark.parametrize("what", list(WRONG))
def test_what_is_not_certified(tmp_path, what):
    """Each is counted where it belongs; a step that is right does not hide it."""
    plan, counts = WRONG[what]
    run = recorded(tmp_path / "run", plan(), Plan())
    (one,) = (place for place in certified(run).places if place.step == 0)
    assert not one
    assert counts.items() <= one.counts.items(), one
    assert not certified(run)
    assert certified(run, steps=[1]) if what != "another weight" else True
    assert main(["mismatch", "--exact", str(run)]) == 1


def test_a_weight_that_changes_while_the_rollout_runs(tmp_path):
    """The first values of both phases are equal, and later ones are not."""
    proof = certified(recorded(tmp_path / "run", Plan(at_token=at_second_token)))
    assert not proof


@pytest.mark.parametrize(
    ("section", "count"),
    [
        ({"parameters": False}, "weights"),
        ({"exclude": ["inner"]}, "weights_unknown"),
        ({"token_range_end": 1}, "aligned"),
        ({"task": "statistics"}, "aligned"),
    ],
)
def test_what_was_not_recorded_proves_nothing(tmp_path, section, count):
    """Weights, cells, or tokens that the configuration left out."""
    proof = certified(recorded(tmp_path / "run", Plan(), **section))
    assert not proof
    assert proof.counts["weights_unknown"] if count == "weights_unknown" else True
    assert proof.counts["weights"] == 0 if count == "weights" else True
    assert proof.counts["aligned"] < max(1, proof.counts["sampled"]) if count == "aligned" else True


def test_steps_that_lack_a_phase(tmp_path, capsys):
    """They fail where they are asked for; a step that no run has is a wrong argument."""
    one_phase = Plan(phases=("actor_generate_sequences",))
    run = recorded(tmp_path / "run", Plan(), one_phase, Plan(phases=("none",)))
    assert main(["mismatch", "--exact", str(run)]) == 1
    shown = capsys.readouterr().out
    assert "step 1, rank 0: actor_compute_log_prob was not recorded" in shown
    assert "step 2, rank 0: actor_generate_sequences, actor_compute_log_prob" in shown
    assert main(["mismatch", "--exact", str(run), "--step", "0"]) == 0
    assert main(["mismatch", "--exact", str(run), "--step", "1"]) == 1
    assert main(["mismatch", "--exact", str(run), "--step", "7"]) == 2
    assert main(["mismatch", "--exact", str(tmp_path / "none")]) == 2
    assert main(["mismatch", "--exact", str(run), "--phases", "one"]) == 2


def test_ranks_that_lack_something(tmp_path):
    """A rank whose training is gone, or that recorded nothing at all."""
    run = recorded(tmp_path / "run", Plan())
    for phase in ("actor_generate_sequences", "actor_compute_log_prob"):
        shutil.copytree(run / phase / "step0" / "rank0", run / phase / "step0" / "rank1")
    for key in (run / "data").iterdir():
        shutil.copytree(key / "step0" / "rank0", key / "step0" / "rank1")
    both = certified(run)
    assert [(place.rank, bool(place)) for place in both.places] == [(0, True), (1, True)]
    shutil.rmtree(run / "actor_compute_log_prob" / "step0" / "rank1")
    assert [bool(place) for place in certified(run).places] == [True, False]
    other = recorded(tmp_path / "other", Plan())
    rewrite(other / "run.json", {"world.size": 2})
    proof = certified(other)
    assert not proof
    assert all(proof.places)
    assert proof.reasons


def test_a_step_that_was_not_completed(tmp_path):
    """What is to come is not known."""
    run = recorded(tmp_path / "run", Plan(), Plan(), close=False)
    assert not certified(run)
    assert certified(run, steps=[0])


def test_what_was_saved_and_is_gone(tmp_path):
    """run.json lists it."""
    run = recorded(tmp_path / "run", Plan())
    shutil.rmtree(run / "data" / "response_mask")
    proof = certified(run)
    assert not proof
    assert proof.reasons


def test_two_runs(tmp_path):
    """The rollout's and the training's; what either saved otherwise is no proof."""
    one, two = (recorded(tmp_path / name, Plan()) for name in ("one", "two"))
    assert certified(one, two)
    other = changed("old_log_prob", put(0, 0, -9.0))
    assert not certified(one, recorded(tmp_path / "other", other))
    saved = {"responses": rows_of([5, 9, 2, 6], [8, 3], [9, 9, 7])}
    assert not certified(one, recorded(tmp_path / "ids", Plan(saved=saved)))


def test_without_saved_ids_rows_are_counted(tmp_path):
    """Texts do not say which rows were sampled: as many as there are log-probabilities."""
    texts = {"prompts": ["a", "b", "c"], "responses": ["d", "e", "f"]}
    assert certified(recorded(tmp_path / "run", Plan(saved=texts)))
    plan = Plan(saved=texts, given=[[5, 9, 4, 6], [8, 3], [9, 9, 4]])
    assert not certified(recorded(tmp_path / "other", plan))
    few = {key: Plan().saved[key][:2] for key in ("rollout_log_prob", "old_log_prob")}
    few |= {**texts, "response_mask": None}
    assert not certified(recorded(tmp_path / "few", Plan(saved=few)))


def test_samples_that_are_alike_need_rows_of_their_own(tmp_path):
    """Two equal responses to one prompt, of which the rollout computed one."""
    ids = {"prompts": [*PROMPTS, PROMPTS[0]], "responses": [*RESPONSES, RESPONSES[0]]}
    saved = {key: [np.array(row) for row in rows] for key, rows in ids.items()}
    tables = ("rollout_log_prob", "old_log_prob", "response_mask")
    saved |= {key: np.concatenate([Plan().saved[key], Plan().saved[key][:1]]) for key in tables}
    proof = certified(recorded(tmp_path / "run", Plan(saved=saved)))
    assert not proof
    assert proof.counts["aligned"] < proof.counts["sampled"]


def test_networks_that_part(tmp_path):
    """Log-probabilities that are equal all the same are not those of these networks."""

    def other(rollout, training):
        rollout.inner.construct = lambda x: type(rollout.inner).construct(rollout.inner, x) * 2

    proof = certified(recorded(tmp_path / "run", Plan(before=other)))
    assert not proof
    assert [said.code for said in proof.reasons] == ["mismatch.exact_apart"]


def test_phases_without_log_probabilities_of_their_own(tmp_path):
    """The reference's are not those of the actor: a wrong argument."""
    run = recorded(tmp_path / "run", Plan())
    phases = "actor_generate_sequences,reference_compute_log_prob"
    assert main(["mismatch", str(run), "--exact", "--phases", phases]) == 2
