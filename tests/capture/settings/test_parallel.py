"""The parallel sizes that a network's configuration says."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from mindspore import nn

from mindrlhf_msprobe.capture.settings.networks import NetworkSettings


class Net(nn.Cell):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.dense = nn.Dense(2, 2)


MINDFORMERS = SimpleNamespace(data_parallel=2, model_parallel=4, pipeline_stage=2)
MEGATRON = SimpleNamespace(tensor_model_parallel_size=4, data_parallel_size=True)


class Broken:
    @property
    def parallel_config(self):
        raise RuntimeError


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        (SimpleNamespace(parallel_config=MINDFORMERS), {"dp": 2, "tp": 4, "pp": 2}),
        ({"parallel_config": {"data_parallel": 2}}, {"dp": 2}),
        (MEGATRON, {"tp": 4}),
        (SimpleNamespace(parallel_config="auto", hidden=3), None),
        (Broken(), None),
        (None, None),
    ],
)
def test_the_sizes_stand_beside_the_network(config, sizes):
    settings = NetworkSettings(pytest.fail)
    settings.watch({"actor": Net(config)}, {})
    assert settings.take().json["networks"][0].get("parallel") == sizes


def test_how_parameters_are_cut_stands_there_once_the_network_is_compiled():
    """As MindSpore's compiler says it in `parameter_layout_dict`, here by hand: it needs Ascend."""
    settings, network = NetworkSettings(pytest.fail), Net(None)
    settings.watch({"actor": network}, {})
    assert "strategy" not in settings.take().json["networks"][0]
    network.parameter_layout_dict = {
        "dense.weight": [[2, 4], [0, -1], [1, 2], 0, True, ""],
        "dense.bias": [[2, 4], [0], [1], 0, True, "optimizer_group"],
        "table.weight": [[2, 4], [0, -1], [1, 2], 3, True, ""],
    }
    settings.end_step()
    found = settings.take().json["networks"][0]["strategy"]
    assert found == {"dense.weight": {"devices": [2, 4], "map": [0, -1]}}
