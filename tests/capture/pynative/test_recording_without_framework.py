"""What tests record without MindSpore (`helpers.runs.Recording`) is what the probe records."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

from helpers.runs import EVERYTHING, Recording
from helpers.small_networks import Assembled, Scale
from mindspore import Tensor

from mindrlhf_msprobe import Probe

PHASES = {"actor_generate_sequences": 3, "actor_compute_log_prob": 1, "actor_update": 2}


class Root(Assembled, a=lambda: Scale(2.0), b=lambda: Scale(4.0)):
    """Two cells in turn; the first runs twice."""

    def construct(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.a(self.a(x))
        return self.b(x), x


def by_probe(root: Path, settings: dict[str, Any]) -> None:
    probe, network = Probe.from_config({**EVERYTHING, "dump_path": str(root), **settings}), Root()
    probe.watch(actor=network)
    for step in range(2):
        probe.save_data(prompts=np.float32([step, 1]))
        for phase, calls in PHASES.items():
            with probe.phase(phase):
                for call in range(calls):
                    network(Tensor(np.float32([call, 3])))
            probe.save_data("loss", np.float32([step]))
        network.a.factor.set_data(Tensor(np.float32(step)))
        probe.step()
    probe.close()


def by_hand(root: Path, settings: dict[str, Any]) -> None:
    recording, factors = Recording(root, **settings), {"a": np.float32(2), "b": np.float32(4)}

    def scale(cell: str, x: Any) -> Any:
        factor = np.array(factors[cell])
        return recording.call(
            cell, "Scale", lambda x: x * factors[cell], x, parameters={"factor": factor}
        )

    def construct(x: Any) -> Any:
        x = scale("a", scale("a", x))
        return scale("b", x), x

    for step in range(2):
        recording.data("prompts", np.float32([step, 1]))
        for phase, calls in PHASES.items():
            with recording.phase(phase):
                for call in range(calls):
                    recording.call("root", "Root", construct, np.float32([call, 3]))
            recording.data("loss", np.float32([step]))
        factors["a"] = np.float32(step)
        recording.end_step()
    recording.close()


def recorded(root: Path) -> dict[str, Any]:
    """Return what a run's journals, key data and files for msprobe hold, by file.

    Left out is what only a real call has: its call stack, the names of its arguments, and of what
    type its tensors are; and where the run lies.
    """

    def plain(content: Any) -> Any:
        if isinstance(content, list):
            return [plain(item) for item in content]
        if not isinstance(content, dict):
            return content
        left_out = {"stack", "frames", "input_names", "dump_data_dir"}
        if "dtype" in content:
            left_out |= {"type"}
        return {name: plain(value) for name, value in content.items() if name not in left_out}

    found: dict[str, Any] = {}
    for file in sorted(root.rglob("*.json*")):
        name = str(file.relative_to(root))
        if "/" in name and file.name != "stack.json":
            lines = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
            found[name] = [plain(json.loads(line)) for line in lines]
    return found


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"token_range_start": 1, "token_range_end": 1, "task": "tensor"},
        {"include": ["^a$"], "parameters": False, "fingerprint": False},
        {"directions": ["backward"]},
        {"step_start": 1, "key_data_dump": False, "exclude": ["root"]},
    ],
)
def test_the_journals_are_those_of_the_probe(tmp_path, settings):
    """Names, places in time, containers, tokens, parameters, values and key data, line by line."""
    by_probe(tmp_path / "probe", settings)
    by_hand(tmp_path / "hand", settings)
    probe, hand = recorded(tmp_path / "probe"), recorded(tmp_path / "hand")
    assert probe or settings.get("directions") == ["backward"]
    assert list(hand) == list(probe)
    for file, content in probe.items():
        assert hand[file] == content, file
