"""MindFormers' Trainer in PyNative mode, with and without the probe: under `mindrlhf-msprobe run`.

Trains several times in one process, in the working directory, and writes the weights that each
training ended with to NAME.npz, and what else is to be known of it to results.json. With the
argument `faulty` it only trains as `by_yaml` does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from helpers import mindformers_trainer as mindformers

mindformers.prepare()

import numpy as np
import yaml
from helpers.wrappers import CheckpointWrapper

HERE = Path.cwd()
SECTION = {
    **{"msprobe": True, "key_data_dump": True, "actor_train_dump": True, "step_end": 9},
    **{"task": "tensor", "configurations_dump": True},
}
results: dict[str, Any] = {}


def section(name: str, **others: Any) -> dict[str, Any]:
    return {**SECTION, "dump_path": str(HERE / name), **others}


def train(
    name: str,
    config: Any,
    resume: str = "",
    prepare: Callable[[Any], None] = lambda trainer: None,
    **given: Any,
) -> Any:
    """Train, keep the weights, and return the Trainer."""
    trainer = mindformers.trainer(config, **given)
    prepare(trainer)
    try:
        trainer.train(resume or None)
    except RuntimeError as error:
        results[name] = {"raised": repr(error.__cause__ or error)}
        return trainer
    weights = {p.name: p.asnumpy() for net in trainer.model for p in net.get_parameters()}
    np.savez(HERE / f"{name}.npz", **weights)
    results[name] = {"callbacks": [type(c).__name__ for c in trainer.callback_handler.callbacks]}
    return trainer


def saving(every: int) -> dict[str, Any]:
    path = str(HERE / "checkpoints")
    return {"enable_save": True, "save_path": path, "save_interleaved_steps": every}


def main() -> None:
    # MindFormers' own monitors write what the recorded runs are held against.
    monitor = {"train_state": {"local_loss": True, "local_norm": True}}
    train("plain", mindformers.settings(HERE, monitor=monitor))

    # The section in the Trainer's own configuration is enough.
    of_section = {"msprobe_config": section("by_section"), "checkpoint": saving(1)}
    trainer = train("by_section", mindformers.settings(HERE, **of_section))
    rates = [float(trainer.lr_scheduler(step).asnumpy()) for step in range(2)]
    results["by_section"]["rates"] = rates

    train_faulty()

    # Resumed after the first step, by a callback given to the Trainer; the section is ignored.
    from mindrlhf_msprobe import ProbeCallback

    given = [ProbeCallback(section("resumed"))]
    config = mindformers.settings(HERE, msprobe_config=section("not_recorded"))
    first = str(HERE / "checkpoints" / "iteration_00000001")
    train("resumed", config, first, callbacks=given)

    # Every layer is recomputed, as hyper-parallel's wrapper does it.
    config = mindformers.settings(HERE, msprobe_config=section("recomputed"))
    train("recomputed", config, prepare=recompute_layers)

    # The second step raises.
    config = mindformers.settings(HERE, msprobe_config=section("failed"))
    train("failed", config, compute_loss_func=raises_in_the_second_step())
    Path("results.json").write_text(json.dumps(results), encoding="utf-8")


def train_faulty() -> None:
    """Train by a YAML file that names the callback; a layer's MLP is a thousandth too large."""
    config = mindformers.settings(HERE)
    config["callbacks"] = [{"type": "ProbeCallback", "config": section("by_yaml")}]
    Path("train.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    trainer = mindformers.trainer("train.yaml")
    layer = trainer.model[0].model.decoder.layers[1].mlp
    construct = layer.construct
    layer.construct = lambda *args, **kwargs: scaled(construct(*args, **kwargs))
    trainer.train()


def recompute_layers(trainer: Any) -> None:
    layers = trainer.model[0].model.decoder.layers
    for number in range(len(layers)):
        layers[number] = CheckpointWrapper(layers[number])


def scaled(output: Any) -> Any:
    return (output[0] * 1.001, *output[1:]) if isinstance(output, tuple) else output * 1.001


def raises_in_the_second_step() -> Any:
    calls = []

    def loss(outputs: Any, labels: Any) -> Any:
        calls.append(labels)
        if len(calls) == 3:
            raise RuntimeError("the loss broke")
        return outputs[0]

    return loss


if __name__ == "__main__":
    if "faulty" in sys.argv:
        train_faulty()
    else:
        main()
