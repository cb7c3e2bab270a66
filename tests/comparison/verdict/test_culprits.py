"""Optimizer, sampling and weights: faults planted in random jobs, and what must not be said.

A job generates tokens with a network that is synchronised with the trained one before, scores them,
and updates several times a step; gradients and weights are recorded as the probe does.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from helpers.runs import Recording

from mindrlhf_msprobe import Tolerance, compare_runs
from mindrlhf_msprobe.capture.tensors.summary import fingerprint_of, to_host
from mindrlhf_msprobe.findings import Cause, CulpritCode, Outcome
from mindrlhf_msprobe.report.comparison import render
from mindrlhf_msprobe.storage.manifest.manifest import FirstEntry, Networks
from mindrlhf_msprobe.storage.manifest.run_file import Network, Settings

GENERATE, LOG_PROB, UPDATE = "actor_generate_sequences", "actor_compute_log_prob", "actor_update"
REFERENCE = "reference_compute_log_prob"
CELLS = ("emb", "layers.0.mlp", "head")
VOCABULARY, WIDTH = 7, 4


@dataclass(frozen=True)
class Job:
    """A job, and the fault in it: what happens from a step, micro-step or token on.

    Attributes:
        fault: lr, decay, gradient, unsynchronised, half_synchronised, broken_copy, temperature,
            sampled, post, logits, prompts, reference, written (into a parameter of the
            reference), elsewhere, initial or reference_initial.
        at: the step, and the micro-step or the token.
        prefix: what the trained network's cells are called below.
        grown: generate on the whole sequence, not on the last token alone.
        half: generate in another dtype.
    """

    fault: str = ""
    at: tuple[int, int] = (0, 0)
    steps: int = 3
    updates: int = 2
    tokens: int = 3
    prefix: str = ""
    grown: bool = False
    keys: bool = True
    half: bool = False
    settings: dict = field(default_factory=dict)

    def hit(self, fault, step, number=None, *, once=True):
        if fault != self.fault:
            return False
        if number is not None and number != self.at[1]:
            return False
        return step == self.at[0] if once else step >= self.at[0]

    def record(self, path):
        recording = Recording(path, **{"key_data_dump": self.keys, **self.settings})
        draw = np.random.default_rng(5)
        sizes = {"emb": (VOCABULARY, WIDTH), "layers.0.mlp": (WIDTH, WIDTH)}
        trained = {
            cell: draw.normal(size=sizes.get(cell, (WIDTH, VOCABULARY))).astype(np.float32)
            for cell in CELLS
        }
        if self.hit("initial", 0):
            trained["head"] = trained["head"] * np.float32(1.5)
        generating, reference = dict(trained), dict(trained)
        momentum = {cell: np.zeros_like(weight) for cell, weight in trained.items()}
        if self.hit("reference_initial", 0):
            reference = {cell: weight * np.float32(1.5) for cell, weight in reference.items()}
        for step in range(self.steps):
            self._synchronise(step, trained, generating, reference)
            if not step:
                networks = {"actor": generating, LOG_PROB: trained, "reference": reference}
                self._save_initial(recording, networks)
            tokens = self._generate(recording, step, generating, draw)
            with recording.phase(LOG_PROB):
                old = self._run(recording, trained, tokens, self.prefix, LOG_PROB, step)
            recording.data("old_log_prob", old)
            with recording.phase(REFERENCE):
                ref = self._run(recording, reference, tokens, "", REFERENCE, step)
            recording.data("ref_log_prob", ref)
            if self.hit("elsewhere", step):
                trained["layers.0.mlp"] = trained["layers.0.mlp"] * np.float32(1.001)
            for number in range(self.updates):
                self._update(recording, step, number, trained, momentum, tokens, draw)
            recording.end_step()
        return recording.close()

    def _save_initial(self, recording, networks):
        for role, weights in networks.items():
            prefix = self.prefix if role == LOG_PROB else ""
            prints = {f"{prefix}{c}.weight": fingerprint_of(to_host(w)) for c, w in weights.items()}
            recording.writer.note(FirstEntry(role, prints, None, GENERATE))
        phases = {"actor": [[GENERATE], [LOG_PROB, UPDATE]], "reference": [[REFERENCE]]}
        made = [Network.make(role=role, phases=of) for role, each in phases.items() for of in each]
        recording.writer.note(Networks(Settings.make(networks=made)))

    def _synchronise(self, step, trained, generating, reference):
        for number, cell in enumerate(CELLS):
            if self.hit("unsynchronised", step):
                continue
            if self.hit("half_synchronised", step) and number >= self.at[1]:
                continue
            generating[cell] = trained[cell].astype(np.float16 if self.half else np.float32)
            if self.hit("broken_copy", step) and number >= self.at[1]:
                generating[cell] = trained[cell] * np.float32(1.01)
        if self.hit("reference", step):
            reference.update(trained)
        if self.hit("written", step):
            reference["head"] = reference["head"] * np.float32(1.5)

    def _generate(self, recording, step, weights, draw):
        ids = draw.integers(0, VOCABULARY, size=(2, 2)).astype(np.int64)
        if self.hit("prompts", step):
            ids[0, 0] = (ids[0, 0] + 1) % VOCABULARY
        recording.data("prompts", ids)
        with recording.phase(GENERATE):
            for token in range(self.tokens):
                shown = ids if self.grown or not token else ids[:, -1:]
                logits = self._run(recording, weights, shown, "", GENERATE, step, token)
                noise = draw.gumbel(size=logits[:, -1].shape)
                if self.hit("temperature", step, token):
                    noise = noise * 40
                chosen = np.argmax(logits[:, -1] + noise, axis=-1)
                if self.hit("sampled", step, token):
                    chosen = (chosen + 1) % VOCABULARY
                ids = np.concatenate([ids, chosen[:, None]], axis=1)
        if self.hit("post", step):
            ids = ids.copy()
            ids[:, -1] = (ids[:, -1] + 1) % VOCABULARY
        recording.data("responses", ids[:, 2:])
        return ids

    def _run(self, recording, weights, ids, prefix, phase, step, token=None):
        def leaf(cell, function, x):
            name = f"{prefix}{cell}"
            return recording.call(name, "Dense", function, x, parameters={"weight": weights[cell]})

        def root(ids):
            x = leaf("emb", lambda i: weights["emb"][i], ids)
            x = leaf("layers.0.mlp", lambda x: np.tanh(x @ weights["layers.0.mlp"]), x)
            out = leaf("head", lambda x: x @ weights["head"], x)
            hit = self.hit("logits", step, token) and phase == GENERATE
            return out + np.float32(hit)

        return recording.call("root", "Net", root, ids)

    def _update(self, recording, step, number, weights, momentum, tokens, draw):
        gradients = {
            cell: draw.normal(size=w.shape).astype(np.float32) for cell, w in weights.items()
        }
        with recording.phase(UPDATE):
            out = self._run(recording, weights, tokens, self.prefix, UPDATE, step)
            for index, cell in enumerate(CELLS):
                if self.hit("gradient", step, number) and index == 1:
                    gradients[cell] = gradients[cell] * np.float32(1.001)
                self._write_gradient(recording, number, cell, gradients[cell])
        recording.data("loss", out.mean())
        for cell, weight in weights.items():
            momentum[cell] = np.float32(0.9) * momentum[cell] + gradients[cell]
            lr = 0.02 if self.hit("lr", step, number) else 0.01
            if self.hit("still", step, number):
                lr = 0.0
            decay = 0.1 if self.hit("decay", step, number) and cell == "head" else 0.0
            weights[cell] = weight - np.float32(lr) * momentum[cell] - np.float32(decay) * weight

    def _write_gradient(self, recording, number, cell, gradient):
        config = recording.config
        if not (config.actor_train_dump and config.records_step(recording.step)):
            return
        name = f"{self.prefix}{cell}"
        if "backward" not in config.directions or not config.records_cell(name):
            return
        entry = f"Cell.{name}.Dense.parameters_grad.{number}"
        opening = recording.opening
        seq = opening.now()
        described = opening.describe([gradient], f"{entry}.weight")
        line = opening.line(entry, seq, opening.now())
        line.values["parameters_grad"] = {"weight": described}
        opening.entries.append(line)


@pytest.fixture
def compared(tmp_path):
    def compare(
        fault, at=(0, 0), *, in_a=False, a=None, tolerance=None, settings=None, options=None, **job
    ):
        job = Job(fault, at, settings=settings or {}, **job)
        right = replace(job, fault="") if a is None else replace(job, **a)
        runs = [(right, tmp_path / "right"), (job, tmp_path / "wrong")]
        if in_a:
            runs.reverse()
        paths = [one.record(path) for one, path in runs]
        return compare_runs(
            *paths, output_path=tmp_path / "out", tolerance=tolerance, **(options or {})
        )

    return compare


def first(comparison):
    found = comparison.verdict.first_divergence
    assert found is not None
    return found


def code(comparison):
    found = first(comparison)
    return None if found.culprit is None else found.culprit.code


NUMBERED = ("lr", "decay", "gradient", "still")
TOKENS = ("temperature", "sampled", "logits")
STEPS = (
    "unsynchronised",
    "half_synchronised",
    "broken_copy",
    "prompts",
    "reference",
    "post",
    "elsewhere",
)
STARTS = ("initial", "reference_initial")


def expected(job):
    """Return the culprit's code, and details of it that are known; None if nothing may be said."""
    step, number = job.at
    last = number == job.updates - 1
    if job.fault in ("lr", "decay", "still"):
        if last and step == job.steps - 1:
            return "nothing differs"
        details = {"phase": UPDATE, "step": step, "micro_step": number, "updates": job.updates}
        details |= {"parameters": 1 if job.fault == "decay" else 3, "of": 3}
        return CulpritCode.OPTIMIZER, details
    if job.fault in ("unsynchronised", "half_synchronised"):
        if not step:
            return "nothing differs"
        stale = 3 if job.fault == "unsynchronised" else 3 - number
        details = {"step": step - 1, "parameters": stale, "of": 3, "other": "current"}
        return CulpritCode.NOT_SYNCHRONISED, details
    if job.fault == "broken_copy":
        return CulpritCode.SYNCHRONISATION, {"parameters": 3 - number, "of": 3, "trained": UPDATE}
    if job.fault == "reference":
        if not step:
            return "nothing differs"
        return CulpritCode.FOLLOWS_TRAINED, {"parameters": 3, "of": 3, "phase": REFERENCE}
    if job.fault in ("sampled", "temperature"):
        last = number == job.tokens - 1
        return CulpritCode.SAMPLING, {"token": number, "last": last, "phase": GENERATE}
    if job.fault == "elsewhere":
        details = {"phase": UPDATE, "since": LOG_PROB, "parameters": 1, "of": 3}
        return CulpritCode.CHANGED_BETWEEN, details
    if job.fault == "post":
        return CulpritCode.SAMPLING, {"token": job.tokens - 1, "last": True}
    return None


def drawn(number):
    draw = random.Random(f"culprits {number}")
    fault = draw.choice([*NUMBERED, *TOKENS, *STEPS, *STARTS])
    updates, tokens, steps = draw.choice([1, 2, 3]), draw.choice([2, 3]), draw.choice([2, 3])
    numbers = updates if fault in NUMBERED else tokens if fault in TOKENS else len(CELLS)
    return Job(
        fault,
        (0 if fault in STARTS else draw.randrange(steps), draw.randrange(numbers)),
        steps,
        updates,
        tokens,
        draw.choice(["", "", "policy.model."]),
        draw.random() < 0.5,
        settings={"task": draw.choice(["statistics", "tensor"])},
    ), draw.random() < 0.5


@pytest.mark.parametrize("number", range(28))
def test_random_faults_are_laid_at_the_right_door(tmp_path, number):
    """Whichever fault in whichever run: the statement that holds, with its numbers, or none."""
    job, in_a = drawn(number)
    right, wrong = replace(job, fault="").record(tmp_path / "x"), job.record(tmp_path / "y")
    comparison = compare_runs(*((wrong, right) if in_a else (right, wrong)))
    found = comparison.verdict.first_divergence
    wanted = expected(job)
    case = f"{job}: {found}"
    if found is None:
        assert wanted == "nothing differs" or job.fault == "temperature", case
        return
    if job.fault == "temperature" and found.culprit is None:
        return  # it changed no token
    if wanted is None:
        assert found.culprit is None, case
        return
    assert found.culprit is not None, case
    assert found.culprit.code is wanted[0], case
    details = found.culprit.details
    assert {name: details[name] for name in wanted[1]} == wanted[1], case
    if wanted[0] is CulpritCode.OPTIMIZER:
        unmoved = None if job.fault != "still" else "A" if in_a else "B"
        assert details["unmoved"] == unmoved, case
        assert found.cause is Cause.PARAMETER, case
        assert "the optimizer step" in found.explanation, case
        assert "check loading" not in found.explanation, case
    if details.get("run") is not None:
        assert details["run"] == ("A" if in_a else "B"), case


def test_the_answers_of_all_three_kinds(compared, tmp_path):
    """What a user reads, and what a program reads."""
    comparison = compared("unsynchronised", (2, 0))
    text = render(comparison)
    assert "DIVERGED at step 2, actor_generate_sequences, rank 0\n" in text
    assert (
        "In B the network of actor_generate_sequences still has the weights of step 1, in 3 of 3 "
        "parameters that are different in actor_update by now: it was not synchronised. In A it "
        "has those of actor_update, as it should." in text
    )
    written = json.loads((tmp_path / "out" / "verdict.json").read_text())["first_divergence"]
    assert written["cause"] == "parameter"
    assert written["culprit"] == {
        **{"code": "not_synchronised", "run": "B", "phase": GENERATE, "trained": UPDATE},
        **{"step": 1, "parameters": 3, "of": 3, "other": "current", "exact": True},
    }


def test_the_answer_of_the_optimizer(compared):
    said = first(compared("lr", (1, 0))).explanation
    assert "The gradients of the update before it, actor_update of step 1, micro-step 0" in said
    assert "the optimizer step after micro-step 0 of actor_update in step 1" in said
    assert (
        "(lr, weight decay, scaling or clipping of the gradients before it, state) is to blame"
        in said
    )


@pytest.mark.parametrize("fault", ["lr", "unsynchronised", "sampled", "broken_copy"])
def test_the_first_difference_alone_is_explained_as_well(compared, fault):
    """What stands after it was not compared, and is read all the same."""
    at = (1, 1) if fault == "lr" else (1, 0)
    whole = first(compared(fault, at))
    alone = first(
        compared(fault, at, options={"first_only": True}, settings={"existing": "overwrite"})
    )
    assert alone.culprit == whole.culprit
    assert alone.explanation == whole.explanation


@pytest.mark.parametrize("fault", ["lr", "unsynchronised", "sampled", "broken_copy"])
def test_what_is_decided_needs_no_further_recording(compared, fault):
    assert first(compared(fault, (1, 0))).next_step is None


def test_the_answer_of_sampling(compared):
    found = first(compared("sampled", (1, 0)))
    assert (found.cause, found.entry) == (Cause.INPUT, "Cell.root.Net.forward.1")
    assert "the choice of the token (seed, temperature, top-p, top-k, post" in found.explanation
    assert "outside the recorded cells" not in found.explanation


def test_one_that_was_never_synchronised_has_its_initial_weights(compared):
    """Only a late step was recorded: run.json still knows the initial weights."""

    comparison = compared("unsynchronised", (2, 0), settings={"step_start": 2})
    # Of the steps before nothing is known, and the weights of step 1 are no initial ones.
    assert code(comparison) is CulpritCode.SYNCHRONISATION
    assert first(comparison).culprit.details["run"] == "B"


@pytest.mark.parametrize("in_a", [False, True])
def test_initial_weights_are_recognised(tmp_path, in_a):
    """The generating network was never given any others."""

    class Never(Job):
        def _synchronise(self, step, trained, generating, reference):
            if step == 0 or not self.fault:
                super()._synchronise(step, trained, generating, reference)

    settings = {"step_start": 2}
    right = Never(keys=False, settings=settings).record(tmp_path / "right")
    wrong = Never("never", keys=False, settings=settings).record(tmp_path / "wrong")
    found = first(compare_runs(*((wrong, right) if in_a else (right, wrong))))
    assert found.culprit.code is CulpritCode.NOT_SYNCHRONISED
    assert found.culprit.details["run"] == ("A" if in_a else "B")
    assert found.culprit.details["initial"] is True
    assert "still has its initial weights, in 3 of 3 parameters" in found.explanation


@pytest.mark.parametrize("in_a", [False, True])
def test_a_network_that_was_loaded_otherwise_is_not_called_behind(tmp_path, in_a):
    """Another of its weights is not the trained one in both runs, and explains no difference."""

    class Loaded(Job):
        def _synchronise(self, step, trained, generating, reference):
            super()._synchronise(step, trained, generating, reference)
            if step == 0:
                generating["head"] = trained["head"] * np.float32(2)
            if self.hit("loaded", step):
                generating["layers.0.mlp"] = trained["layers.0.mlp"] * np.float32(1.5)

    right = Loaded(keys=False).record(tmp_path / "right")
    wrong = Loaded("loaded", keys=False).record(tmp_path / "wrong")
    found = first(compare_runs(*((wrong, right) if in_a else (right, wrong))))
    assert (found.cause, found.entry) == (Cause.PARAMETER, "Cell.layers.0.mlp.Dense.forward.0")
    assert found.culprit.code is CulpritCode.SYNCHRONISATION
    assert found.culprit.details["run"] == ("A" if in_a else "B")


@pytest.mark.parametrize("in_a", [False, True])
def test_weights_of_another_dtype_tell_that_nothing_changed(compared, in_a):
    """They cannot be held against the trained ones, but against their own of the step before."""
    found = first(compared("unsynchronised", (2, 0), half=True, in_a=in_a, keys=False))
    assert found.culprit.code is CulpritCode.NOT_MOVED
    still = "A" if in_a else "B"
    assert (found.culprit.details["run"], found.culprit.details["step"]) == (still, 1)
    assert f"while the weights of actor_update agree: {still} was not synch" in found.explanation


def test_a_network_that_is_never_synchronised_is_not_to_blame_for_a_broken_copy(tmp_path):
    """Where both lag by design, a run whose weights are of no known state is not called right."""

    class Lagging(Job):
        def _synchronise(self, step, trained, generating, reference):
            if step == 0 or self.hit("broken_copy", step):
                super()._synchronise(step, trained, generating, reference)

    right = Lagging(keys=False).record(tmp_path / "right")
    wrong = Lagging("broken_copy", (2, 0), keys=False).record(tmp_path / "wrong")
    found = first(compare_runs(right, wrong))
    assert (found.culprit.code, found.culprit.details["run"]) == (CulpritCode.MOVED, "B")
    assert "In B the network of actor_generate_sequences changed after" in found.explanation


def test_both_behind_by_unlike_steps(compared):
    """Neither run is right; both are told."""
    comparison = compared("unsynchronised", (2, 0), a={"fault": "unsynchronised", "at": (1, 0)})
    found = first(comparison)
    assert found.step == 1
    assert found.culprit.details["run"] == "A"


def test_gradients_that_were_not_recorded_are_asked_for(compared):
    """Without gradients, the optimizer is not named, and what to record is."""
    comparison = compared("lr", (0, 1), settings={"directions": ["forward"]})
    assert code(comparison) is CulpritCode.GRADIENTS_NOT_RECORDED
    said = first(comparison).explanation
    assert "record that step with directions: [forward, backward]" in said
    assert first(comparison).next_step == {
        **{"msprobe": True, "actor_infer_dump": True, "actor_train_dump": True},
        **{"step_start": 0, "step_end": 1},
    }
    assert "is to blame" not in said


def test_gradients_that_differ_are_the_culprit_themselves(compared):
    """The optimizer followed them."""
    found = first(compared("gradient", (0, 1)))
    assert found.entry == "Cell.layers.0.mlp.Dense.parameters_grad.1"
    assert (found.cause, found.culprit) == (Cause.COMPUTATION, None)


def test_gradients_that_agree_within_a_tolerance_leave_it_open(compared):
    """What is small in a gradient may be large after the optimizer."""
    comparison = compared(
        "gradient", (0, 1), tolerance=Tolerance(rtol=2e-3), settings={"task": "tensor"}
    )
    assert comparison.verdict.status in (Outcome.WITHIN_TOLERANCE, Outcome.DIVERGED)
    comparison = compared(
        "gradient",
        (0, 1),
        tolerance=Tolerance(rtol=1.1e-3),
        a={"fault": "lr", "at": (0, 1)},
        settings={"task": "tensor", "existing": "overwrite"},
    )
    assert code(comparison) is CulpritCode.UPDATE_CLOSE
    assert (
        "Either these small differences grew, or the optimizer step"
        in first(comparison).explanation
    )


def test_statistics_alone_prove_no_optimizer(compared):
    """Without fingerprints the gradients agree by statistics only."""
    comparison = compared("lr", (0, 1), settings={"fingerprint": False})
    assert code(comparison) is CulpritCode.UPDATE_CLOSE


def test_statistics_alone_tell_stale_weights_with_a_reservation(compared):
    comparison = compared("unsynchronised", (1, 0), settings={"fingerprint": False})
    assert code(comparison) is CulpritCode.NOT_SYNCHRONISED
    assert first(comparison).culprit.details["exact"] is False
    assert "without fingerprints that is no proof" in first(comparison).explanation


def test_an_update_that_was_not_recorded_is_asked_for(compared):
    """Of one step alone it cannot be told what came before it."""
    comparison = compared("lr", (1, 1), settings={"step_start": 2, "actor_train_dump": True})
    assert first(comparison).step == 2
    assert code(comparison) is CulpritCode.UPDATE_NOT_RECORDED
    assert "record step 1 as well" in first(comparison).explanation
    assert (first(comparison).next_step["step_start"], first(comparison).step) == (1, 2)


def test_weights_alone_of_the_generating_network_leave_open_which_run_is_right(compared):
    """Without the trained network, that nothing changed is all that is known."""
    comparison = compared("unsynchronised", (1, 0), settings={"actor_train_dump": False})
    found = first(comparison).culprit
    assert found.code is CulpritCode.NOT_MOVED
    assert (found.details["run"], found.details["step"]) == ("B", 0)
    assert (found.details["parameters"], found.details["of"]) == (3, 3)
    assert first(comparison).next_step["actor_train_dump"] is True
    assert (
        "In B none of 3 parameters has changed since step 0, in A 3 of them"
        in first(comparison).explanation
    )


@pytest.mark.parametrize("in_a", [False, True])
def test_a_frozen_network_has_no_update_to_miss(compared, in_a):
    """It changed in one run, where nothing trains it: no missing recording is named."""
    found = first(compared("written", (1, 0), in_a=in_a))
    assert (found.phase, found.culprit.code) == (REFERENCE, CulpritCode.MOVED)
    moved, still = ("A", "B") if in_a else ("B", "A")
    assert f"In {moved} the network of {REFERENCE} changed" in found.explanation
    assert f"in {still} it still has its initial weights" in found.explanation
    assert "update" not in found.explanation


LATER = {"step_start": 2, "step_end": 2}


@pytest.mark.parametrize("in_a", [False, True])
def test_weights_recorded_later_show_that_a_reference_was_changed(compared, in_a):
    """Its log-probabilities part in a step without weights; those of the next step tell."""
    found = first(compared("written", (1, 0), in_a=in_a, settings=LATER))
    assert (found.step, found.record, found.cause) == (1, "ref_log_prob", Cause.DATA)
    assert found.culprit is not None
    assert found.culprit.code is CulpritCode.MOVED_SINCE
    moved, still = ("A", "B") if in_a else ("B", "A")
    assert found.culprit.details | {"run": moved, "parameters": 1, "of": 3, "seen": 2} == (
        found.culprit.details
    )
    assert f"In {moved} the network of {REFERENCE} changed after the start" in found.explanation
    assert f"in {still} it still has its initial weights there" in found.explanation
    assert "Its weights of step 1 were not recorded" in found.explanation
    assert (found.next_step["reference_dump"], found.next_step["step_start"]) == (True, 1)


def test_a_reference_that_is_synchronised_by_mistake_was_changed(compared):
    found = first(compared("reference", (1, 0), settings=LATER))
    assert (found.record, found.culprit.code) == ("ref_log_prob", CulpritCode.MOVED_SINCE)
    assert (found.culprit.details["run"], found.culprit.details["parameters"]) == ("B", 3)


class OldPolicy(Job):
    """An old policy that is a network of its own, and in one run is changed by mistake."""

    def _run(self, recording, weights, ids, prefix, phase, step, token=None):
        if phase == LOG_PROB:
            if not step:
                recording.old = dict(weights)
            weights = recording.old
            if self.hit("old", step):
                weights["head"] = weights["head"] * np.float32(1.5)
        return super()._run(recording, weights, ids, prefix, phase, step, token)

    def _save_initial(self, recording, networks):
        super()._save_initial(recording, networks)
        one = [[GENERATE], [LOG_PROB], [UPDATE]]
        made = [Network.make(role="actor", phases=phases) for phases in one]
        recording.writer.note(Networks(Settings.make(networks=made)))


@pytest.mark.parametrize(("step", "steps"), [(1, 3), (1, 4), (2, 4)])
def test_an_old_policy_that_was_changed_is_seen_later(tmp_path, step, steps):
    """Whichever step has the weights, and how much later."""
    settings = {"step_start": steps - 1, "step_end": steps - 1}
    right = OldPolicy(steps=steps, settings=settings).record(tmp_path / "a")
    wrong = OldPolicy("old", (step, 0), steps, settings=settings).record(tmp_path / "b")
    found = first(compare_runs(right, wrong))
    assert (found.step, found.record) == (step, "old_log_prob")
    assert found.culprit.code is CulpritCode.MOVED_SINCE
    assert (found.culprit.details["run"], found.culprit.details["seen"]) == ("B", steps - 1)


@pytest.mark.parametrize("settings", [{"step_start": 1, "step_end": 1}, {"step_end": 0}])
def test_weights_that_do_not_show_a_change_say_nothing(compared, settings):
    """A reference that is changed in the last step only, and weights of the steps before it."""
    found = first(compared("written", (2, 0), settings=settings))
    assert (found.step, found.record, found.culprit) == (2, "ref_log_prob", None)


def test_a_network_that_differs_from_the_start_was_not_changed_after_it(compared):
    """Its first weights differ: that is said, not a change."""
    found = first(compared("reference_initial", settings={**LATER, "step_start": 1}))
    assert (found.step, found.record, found.culprit) == (0, "ref_log_prob", None)


def test_initial_weights_that_differ_are_no_update(compared):
    """Nothing came before them, so nothing is said but that they differ."""
    comparison = compared("initial")
    assert (first(comparison).step, first(comparison).cause) == (0, Cause.PARAMETER)
    assert code(comparison) is None
    assert "check loading" in first(comparison).explanation


def test_cells_left_out_are_a_reservation(compared):
    """A gradient that was not recorded may act through clipping."""
    comparison = compared("lr", (0, 1), settings={"exclude": ["head"]})
    assert code(comparison) is CulpritCode.OPTIMIZER
    assert "left out by include/exclude may differ" in first(comparison).explanation


def test_a_network_that_was_left_out_hides_its_logits(compared):
    """The outermost recorded cell is not the network: its output is not the logits."""
    comparison = compared("sampled", (1, 0), settings={"exclude": ["^root$", "head"]})
    assert code(comparison) is None


@pytest.mark.parametrize(("last", "known"), [(2, True), (3, True), (1, False)])
def test_as_many_passes_as_tokens_are_all_of_them(compared, last, known):
    """Responses of three tokens come of three passes: no wider range is needed to say so."""
    comparison = compared("sampled", (1, 2), settings={"token_range_end": last})
    assert first(comparison).record == "responses"
    assert code(comparison) is (CulpritCode.SAMPLING if known else None)
    assert ("only some of its tokens" in first(comparison).explanation) is not known


def test_logits_that_agree_by_statistics_only_leave_the_choice_open(compared):
    comparison = compared("sampled", (1, 1), settings={"fingerprint": False})
    assert code(comparison) is CulpritCode.SAMPLING_OR_LOGITS
    assert (
        "either these small differences changed which token was chosen"
        in first(comparison).explanation
    )


@pytest.mark.parametrize(("keys", "said"), [(True, False), (False, True)])
def test_a_new_prompt_is_thought_of_unless_the_prompts_agree(tmp_path, keys, said):
    """Passes of one shape may be of another prompt; the prompts that were saved tell."""

    def record(path, change):
        recording = Recording(path, key_data_dump=keys)
        recording.data("prompts", np.arange(4))
        with recording.phase(GENERATE):
            for token in range(3):
                ids = np.arange(4) + (change if token == 1 else 0)
                recording.call("root", "Net", lambda x: x * 0.5, ids)
        recording.end_step()
        return recording.close()

    comparison = compare_runs(record(tmp_path / "a", 0), record(tmp_path / "b", 1))
    assert code(comparison) is CulpritCode.SAMPLING
    assert first(comparison).culprit.details["prompt"] is said
    assert ("a new prompt begins here" in first(comparison).explanation) is said


@pytest.mark.parametrize("kind", ["prefill", "mask", "float"])
def test_what_is_no_chosen_token_is_not_laid_at_sampling(tmp_path, kind):
    """The prompts of a next batch, a mask, an embedding."""

    def record(path, change):
        recording = Recording(path, key_data_dump=False)
        with recording.phase(GENERATE):
            for token, length in enumerate((4, 1, 4)):
                ids = np.arange(length)
                mask = np.ones(length, np.int32)
                if kind == "float":
                    ids = ids * 0.5
                if token == 2 and kind == "prefill":
                    ids = ids + change
                if token == 1 and kind == "float":
                    ids = ids + change
                if token == 1 and kind == "mask":
                    mask = mask + change
                recording.call("root", "Net", lambda x, m: x * 0.5, ids, m=mask)
        recording.end_step()
        return recording.close()

    comparison = compare_runs(record(tmp_path / "a", 0), record(tmp_path / "b", 1))
    assert first(comparison).cause is Cause.INPUT
    assert code(comparison) is None


def test_what_the_caller_left_out_is_not_called_unrecorded(compared):
    """Gradients that the comparison left out may tell; nothing is said of them."""
    comparison = compared("lr", (0, 1), options={"exclude": ["parameters_grad"]})
    assert code(comparison) is None
    comparison = compared(
        "lr", (0, 1), options={"steps": "1-2"}, settings={"existing": "overwrite"}
    )
    assert code(comparison) is None


def test_two_phases_of_one_run_are_two_networks(tmp_path):
    """That they differ is laid at no optimizer."""
    run = Job().record(tmp_path / "a")
    comparison = compare_runs(run, phases=(LOG_PROB, REFERENCE))
    assert (first(comparison).cause, code(comparison)) == (Cause.PARAMETER, None)
