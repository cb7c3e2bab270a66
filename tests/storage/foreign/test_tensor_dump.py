"""Files of msprobe's `save`, as MindRLHF lets it write them: `<name>_<dtype>_<n>.npy`."""

import numpy as np

from mindrlhf_msprobe import Probe, ProbeConfig, compare_runs, open_run


class Saves:
    """Writes what msprobe's save writes, by TensorDump, which does not exist on CPU."""

    def __init__(self, root):
        self.root, self.step, self._order = root, 0, 0

    def save(self, folder, name, data):
        if isinstance(data, (dict, list)):
            items = data.items() if isinstance(data, dict) else enumerate(data)
            for key, value in items:
                self.save(folder, f"{name}.{key}", value)
            return
        array = np.asarray(data)
        path = self.root / folder / f"step{self.step}" / "rank0"
        path.mkdir(parents=True, exist_ok=True)
        np.save(path / f"{name}_{array.dtype}_{self._order}.npy", array)
        self._order += 1

    def save_data(self, name, data):
        self.save(f"data/{name}", name, data)

    def save_string_list(self, name, texts):
        for text in texts:
            self.save_data(name, np.frombuffer(text.encode(), np.uint8))


def write(root, steps=2, fault=None):
    """Write two steps of a GRPO; `fault`: (step, key, micro-step) of a value that differs."""
    saves = Saves(root)
    for step in range(steps):
        saves.step = step

        def value(key, micro_step=0, shape=(2, 3), step=step):
            seed = [ord(c) for c in key] + [step, micro_step]
            array = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
            return array + np.float32(fault == (step, key, micro_step))

        saves.save_string_list("responses", [f"answer {i} é" for i in range(3)])
        for key in ("advantages", "ref_log_prob"):
            saves.save_data(key, value(key))
        for micro_step in range(12):
            for key in ("log_prob", "kl_loss", "loss"):
                saves.save(".", key, value(key, micro_step))
        saves.save_data("metrics", {"a": value("a"), "b": [value("b"), value("c")]})
        saves.save_data("metrics", {"a": value("a", 1), "b": [value("b", 1)]})
    return root


def test_every_save_is_read(tmp_path):
    run = open_run(write(tmp_path / "run"))
    assert run.steps == [0, 1]
    assert run.keys == sorted(
        ["advantages", "kl_loss", "log_prob", "loss", "metrics", "ref_log_prob", "responses"]
    )
    assert not run.problems
    for key in ("log_prob", "kl_loss", "loss"):
        assert [d.micro_step for d in run.key_data(key, step=1)] == list(range(12))
    assert [d.records[0].leaf.value for d in run.key_data("responses", step=0)] == [
        f"answer {i} é" for i in range(3)
    ]
    first, second = run.key_data("metrics", step=0)
    assert [record.path for record in first.records] == ["a", "b.0", "b.1"]
    assert [record.path for record in second.records] == ["a", "b.0"]
    assert first.records[0].array().shape == (2, 3)


def test_two_of_them_are_compared(tmp_path):
    a = write(tmp_path / "a")
    assert compare_runs(a, write(tmp_path / "b")).verdict.status == "identical"
    found = compare_runs(a, write(tmp_path / "c", fault=(1, "kl_loss", 10))).verdict
    assert found.first_divergence.record == "kl_loss"
    assert found.first_divergence.step == 1
    assert found.first_divergence.occasion.number == 10


def record(root, saved, *, without=(), **more):
    """Record with this package what another run saved, and more."""
    config = ProbeConfig(msprobe=True, key_data_dump=True, dump_path=str(root))
    with Probe(config) as probe:
        for step in saved.steps:
            probe.save_data(responses=np.arange(6).reshape(3, 2), **more)
            for key in ("advantages", "ref_log_prob", "log_prob", "kl_loss", "loss"):
                for datum in saved.key_data(key, step=step):
                    if (key, step) not in without:
                        probe.save_data(key, datum.records[0].array().copy())
            for datum in saved.key_data("metrics", step=step):
                arrays = [record.array().copy() for record in datum.records]
                probe.save_data("metrics", {"a": arrays[0], "b": arrays[1:]})
            probe.step()
    return root


TEXTS = "key data that one run saved as texts and the other as token ids"


def test_one_is_compared_with_a_run_of_ours(tmp_path):
    """Texts stand against token ids: those are not compared, all else is."""
    theirs = write(tmp_path / "theirs")
    verdict = compare_runs(theirs, record(tmp_path / "ours", open_run(theirs))).verdict
    assert verdict.status == "identical"
    assert {gap.reason for gap in verdict.coverage} == {TEXTS}


def test_what_msprobe_never_saved_is_not_missing(tmp_path):
    """This package takes more of a training itself: rewards, ratio, what the loss is given."""
    theirs = write(tmp_path / "theirs")
    ours = record(tmp_path / "ours", open_run(theirs), rewards=[0.5, 1.0], ratio=1.0)
    for pair in ((theirs, ours), (ours, theirs)):
        verdict = compare_runs(*pair).verdict
        assert verdict.status == "identical"
        reasons = {TEXTS, "key data that msprobe saved in no step of the other run"}
        assert {gap.reason for gap in verdict.coverage} == reasons


def test_what_one_of_them_saved_and_the_other_not_is_missing(tmp_path):
    """Of a key that msprobe saved in another step, and of one that this package lacks."""
    theirs = write(tmp_path / "theirs")
    ours = record(tmp_path / "ours", open_run(theirs), without=[("ref_log_prob", 1)])
    first = compare_runs(theirs, ours).verdict.first_divergence
    assert (first.record, first.step, first.cause) == ("ref_log_prob", 1, "missing")
    all_of_it = record(tmp_path / "all", open_run(theirs))
    for file in (theirs / "data/advantages/step1/rank0").iterdir():
        file.unlink()
    first = compare_runs(theirs, all_of_it).verdict.first_divergence
    assert (first.record, first.step, first.cause) == ("advantages", 1, "missing")
