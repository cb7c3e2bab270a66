"""Recording never stops the training: faults are logged once, counted and written down."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

from helpers.programs import read_json, run_python
from helpers.small_networks import (
    BrokenTensor,
    Cubed,
    Does,
    Echo,
    Opaque,
    Scale,
    hook_count,
    tensor,
)
from mindspore import nn

from mindrlhf_msprobe import Probe, UsageError, open_run
from mindrlhf_msprobe.capture.recording import recorder
from mindrlhf_msprobe.report.messages import text_of
from mindrlhf_msprobe.storage.reading.reader import Run


class BrokenMapping(Mapping):  # type: ignore[type-arg]
    """A mapping that cannot be read."""

    def __getitem__(self, key: Any) -> Any:
        raise KeyError(key)

    def __iter__(self) -> Any:
        raise OSError("gone")

    def __len__(self) -> int:
        return 1


class Silent(Exception):
    """An exception that cannot even say what it is."""

    def __str__(self) -> str:
        raise ValueError("no words")


class Mute(ms.Tensor):
    """A tensor whose fault cannot be printed."""

    def asnumpy(self) -> np.ndarray:
        raise Silent


class StrangeCell(nn.Cell):
    """A cell on which no hook can be put."""

    def construct(self, x: Any) -> Any:
        return x

    def register_forward_hook(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("no hooks here")


def manifest(run: Probe | Run) -> dict[str, Any]:
    path = run.path if isinstance(run, Run) else run.config.dump_path
    return read_json(Path(path) / "run.json")


class Talking(ms.Tensor):
    """A tensor whose fault says what it takes at great length, as MindSpore's casts do."""

    def asnumpy(self) -> np.ndarray:
        raise TypeError("Unsupported data type! " + "input[UInt8], output[UInt8];" * 1200)


def test_what_a_framework_says_at_length_is_cut(run_phase, warnings_of):
    """In the log and in the files."""
    network = Echo()
    run = run_phase(network, lambda: network(Talking(np.zeros(2, np.float32))))
    assert max(map(len, warnings_of())) < 2000
    (entry,) = run.entries()
    for record in entry.records:
        assert "Unsupported data type!" in str(record.leaf.why)
        assert len(str(record.leaf.why)) < 2000


def test_a_tensor_that_cannot_be_fetched_is_a_lost_record(run_phase, warnings_of):
    """A tensor whose conversion fails is logged once, counted each time, and named unreadable."""
    network, found = Echo(), []
    broken = BrokenTensor(np.zeros(2, np.float32))
    run = run_phase(network, lambda: found.extend(network(broken) for _ in range(3)))
    assert all(each is broken for each in found)
    (warning,) = [w for w in warnings_of() if "could not record" in w]
    assert "MemoryError: the device is gone" in warning
    assert "step 0" in warning
    assert manifest(run)["lost"] == {"a tensor: MemoryError": 6}
    entries = run.entries()
    assert len(entries) == 3
    assert {str(r.leaf.why) for e in entries for r in e.records} == {
        "MemoryError: the device is gone"
    }


def test_strict_raises_the_fault_itself(run_phase):
    """With strict: true a fault while recording raises, and no hook stays behind."""
    network = Echo()
    with pytest.raises(MemoryError, match="device is gone"):
        run_phase(network, lambda: network(BrokenTensor(np.zeros(2, np.float32))), strict=True)
    assert hook_count(network) == 0


def test_strict_does_not_hide_the_trainings_own_exception(layer_probe):
    """Where training raises and closing the phase fails too, training's exception arrives."""
    probe = layer_probe(strict=True)
    root = Path(probe.config.dump_path)

    def fails(_: nn.Cell, x: Any) -> Any:
        os.rename(root, f"{root}.away")
        root.write_text("a file where the directory was")
        raise LookupError("training's own")

    network = Does(fails)
    probe.watch(actor=network)
    with pytest.raises(LookupError, match="training's own"), probe.phase("actor_update"):
        network(tensor(2))
    root.unlink()
    os.rename(f"{root}.away", root)


@pytest.mark.parametrize(
    "argument", [BrokenMapping(), Mute(np.zeros(2, np.float32)), {Opaque(): 1}], ids=type
)
def test_any_other_fault_leaves_training_alone(run_phase, argument):
    """Whatever goes wrong while an argument is looked at, the cell gets it and goes on."""
    network, found = Echo(), []
    run = run_phase(network, lambda: found.extend([network(argument), network(tensor(2))]))
    assert found[0] is argument
    assert 1 in [e.call for e in run.entries()]


def test_a_network_that_takes_no_hooks_is_left_as_it_was(run_phase, warnings_of):
    """When hooks cannot be registered, those already on are removed and training goes on."""
    network, counts = nn.SequentialCell(Scale(), Cubed(), StrangeCell()), []
    run = run_phase(network, lambda: (counts.append(hook_count(network)), network(tensor(2))))
    assert counts == [0]
    assert any("no hooks here" in w for w in warnings_of())
    assert manifest(run)["lost"] == {"phase actor_update: RuntimeError": 1}


def test_a_full_or_vanished_disk_does_not_stop_training(watched, warnings_of, tmp_path):
    """When nothing can be written any more, every call of the probe still returns."""
    probe, network = watched(Scale(), key_data_dump=True, configurations_dump=True, task="tensor")
    os.rename(tmp_path / "run", tmp_path / "away")
    (tmp_path / "run").write_text("a file where the directory was")
    for _ in range(2):
        with probe.phase("actor_update"):
            out = network(tensor(2))
        probe.save_data(loss=out)
        probe.save_configs({"a": 1})
        probe.step()
    probe.close()
    assert probe.current_step == 2
    assert np.array_equal(out.asnumpy(), tensor(2).asnumpy() * 2)
    assert any("Recording stops in step 0" in w for w in warnings_of())


def test_hooks_of_others_stay(watched):
    """Hooks that were there before a phase, or came inside it, still work after it."""
    probe, network = watched(nn.SequentialCell(Scale(), Cubed()))
    seen: list[str] = []

    def pre_hook(cell: nn.Cell, args: Any) -> None:
        seen.append(type(cell).__name__)

    handles = [network[1].register_forward_pre_hook(pre_hook)]
    with probe.phase("actor_update"):
        handles.append(network[0].register_forward_pre_hook(pre_hook))
        network(tensor(2))
    network(tensor(2))
    assert seen == ["Scale", "Cubed"] * 2
    for handle in handles:
        handle.remove()
    network(tensor(2))
    assert len(seen) == 4
    assert hook_count(network) == 0


def test_one_bad_key_does_not_lose_the_others(make_probe):
    """A key that is refused raises after the other keys of the call were saved."""
    probe = make_probe(key_data_dump=True)
    with pytest.raises(UsageError, match=r"\.\./evil"):
        probe.save_data({"first": 1.0, "../evil": 2.0, "last": 3.0})
    probe.close()
    assert open_run(probe.config.dump_path).keys == ["first", "last"]


def test_a_note_that_cannot_be_written_is_lost_alone(make_probe, warnings_of):
    """What cannot be noted of the run is a counted loss; later notes are in the manifest."""
    probe = make_probe(key_data_dump=True)
    probe.note_checkpoint("actor", Silent())
    probe.note_checkpoint("critic", Path("critic.ckpt"))
    probe.close()
    assert [w for w in warnings_of() if "could not record checkpoints" in w]
    assert manifest(probe)["lost"] == {"checkpoints: ValueError": 1}
    assert manifest(probe)["checkpoints"] == {"critic": "critic.ckpt"}


@pytest.mark.parametrize("value", [Opaque(), {1, 2}, object(), range(3), len, b"bytes"])
def test_a_value_that_cannot_be_saved_is_lost_with_a_warning(make_probe, warnings_of, value):
    """A value of an unsupported type is a counted loss, and what stands beside it is saved."""
    probe = make_probe(key_data_dump=True)
    for _ in range(2):
        probe.save_data("mixed", [1.0, value, 2.0])
    (warning,) = [w for w in warnings_of() if "could not record" in w]
    assert "key data mixed" in warning
    assert type(value).__name__ in warning
    probe.close()
    assert manifest(probe)["lost"] == {"key data mixed: TypeError": 2}
    what = {"code": "lost.key_data", "params": {"key": "mixed"}}
    said = {"code": "lost.kind", "params": {"what": what, "why": "TypeError"}}
    assert manifest(probe)["lost_codes"] == {"key data mixed: TypeError": said}
    saved = open_run(probe.config.dump_path).key_data("mixed")[1].value
    assert (saved[0], saved[2]) == (1.0, 2.0)


def test_kinds_of_losses_without_end_are_counted_together_beyond_a_bound(make_probe, monkeypatch):
    """Memory and run.json stay bounded, and nothing is lost uncounted."""
    monkeypatch.setattr(recorder, "_MOST_KINDS", 3)
    probe = make_probe(key_data_dump=True)
    for number in range(20):
        probe.save_data(f"key{number % 10}", Opaque())
    probe.close()
    lost = manifest(probe)["lost"]
    kinds = [f"key data key{number}: TypeError" for number in range(3)]
    assert lost == {**dict.fromkeys(kinds, 2), "further kinds of losses": 14}
    run = open_run(probe.config.dump_path)
    assert text_of(run.losses[-1], "zh") == "rank 0 丢失 14 条记录：其他种类的丢失"


def test_strict_raises_for_key_data_too(make_probe):
    """With strict: true a value that cannot be saved raises, counted once."""
    probe = make_probe(key_data_dump=True, strict=True)
    with pytest.raises(TypeError, match="cannot be saved"):
        probe.save_data(bad=Opaque())
    probe.close()
    assert manifest(probe)["lost"] == {"key data bad: TypeError": 1}


def test_what_an_operator_of_the_training_met_is_raised_in_the_training(tmp_path):
    """MindSpore raises it once, at the first wait: recording, which waits first, passes it on.

    Else what was never computed would be trained on. In a process of its own, where operators do
    not wait for each other.
    """
    program = """
import mindspore as ms, numpy as np
from mindspore import nn, ops
from mindrlhf_msprobe import Probe
ms.set_context(mode=ms.PYNATIVE_MODE)
class Row(nn.Cell):
    def __init__(self):
        super().__init__()
        self.table = ms.Parameter(ms.Tensor(np.ones((4, 4), np.float32)), name="table")
    def construct(self, index):
        return ops.gather(self.table, index, 0)
network = Row()
step = ms.value_and_grad(lambda i: network(i).sum(), None, network.trainable_params())
def trained(probe, index):
    with probe.phase("actor_update"):
        step(index)[0].asnumpy()
def generated(probe, index):
    with probe.phase("actor_generate_sequences"):
        network(index).asnumpy()
def saved(probe, index):
    probe.save_data(x=network(index))
    network(index).asnumpy()
for run in trained, generated, saved:
    for rows in 3, 30_000:
        path = f"{run.__name__}_{rows}"
        layers = run is not saved
        probe = Probe.from_config(dict(
            msprobe=True, dump_path=path, key_data_dump=not layers,
            actor_infer_dump=layers, actor_train_dump=layers,
        ))
        probe.watch(actor=network)
        try:
            run(probe, ms.Tensor(np.full(rows, 9)))
        except RuntimeError as error:
            print(path, "Gather" in str(error))
        run(probe, ms.Tensor([1, 2]))
        probe.close()
"""
    done = run_python(program, tmp_path)
    cases = [f"{how}_{rows}" for how in ("trained", "generated", "saved") for rows in (3, 30_000)]
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [[c, "True"] for c in cases]
    lost = [read_json(tmp_path / case / "run.json")["lost"] for case in cases]
    assert [sum(counts.values()) for counts in lost] == [1] * len(cases)
