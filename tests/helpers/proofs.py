"""Experiments with the policy trainer: its faults, and what a proof has to name each by."""

from __future__ import annotations

import random

from helpers.policy_trainer import CONFIG, train
from mindrlhf_msprobe.proof.prove import Experiment, prove

CELLS = {
    "embedding": "Embedding",
    "head": "Dense",
    **{f"layers.{i}.{name}": "Dense" for i in range(3) for name in ("up", "down")},
    **{f"layers.{i}.norm": "LayerNorm" for i in range(3)},
}


def of_cells(kind, *but):
    """Return the faults of a kind, by cell, and the cell's entries."""
    return {f"{kind}:{name}": f"Cell.{name}.{of}" for name, of in CELLS.items() if name not in but}


#: The faults of each kind, and what a proof has to name each by: the entries, the part of them that
#: is put in, or the key data before them.
FAULTS = {
    "kernels": {**of_cells("kernel"), "norms": "Cell.layers.2.norm.LayerNorm"},
    "backward": of_cells("backward", "embedding"),
    "other networks": {**of_cells("rollout"), **of_cells("reference")},
    "between cells": {
        "gelu": "Cell.layers.2.Layer",
        "factor:layers": "Cell.layers.0.Layer",
        "factor:network": "Cell.root.Policy",
    },
    "weights": {"weights": "parameters", "reference_weights": "parameters"},
    "optimizer": dict.fromkeys(("rate", "clip", "decay", "epsilon"), "updated_parameters"),
    "loss": {"loss": "loss"},
    "inputs": {"prompts": "prompts"},
    "key data": {"rewards": "rewards", "advantages": "advantages", "logged": "kl"},
    "synchronisation": {"stale": "parameters", "sync": "parameters"},
}
NAMES = {fault: name for faults in FAULTS.values() for fault, name in faults.items()}

#: One of each kind that shows before the noise of the trainer's advantages.
BEFORE_NOISE = (
    *("kernel:layers.1.down", "norms", "rollout:head", "reference:layers.0.up"),
    *("gelu", "factor:layers", "factor:network", "weights", "reference_weights"),
)


def drawn(seed, kinds):
    """Draw a fault of each of some kinds, by a seed; the first goes through all kinds."""
    draw, names = random.Random(seed), [*FAULTS]
    first = names.pop(seed % len(names))
    return [draw.choice([*FAULTS[kind]]) for kind in (first, *draw.sample(names, kinds - 1))]


def run_with(faults, path):
    train({**CONFIG, "dump_path": str(path)}, faults)
    return path


def proven(healthy, tmp_path, command, faults, **options):
    b = healthy / "loss" if faults == ["loss"] else run_with(faults, tmp_path / "b")
    options = {"tensors": healthy / "tensors", "again": 0, **options}
    return prove(Experiment(healthy / "a", b, tmp_path / "out", command(faults), **options))


def names_of(found):
    return [{*cause.entries, *cause.what, *cause.keys} for cause in found.causes]
