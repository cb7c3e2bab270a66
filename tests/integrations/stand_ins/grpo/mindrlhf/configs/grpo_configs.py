"""The configuration: a section of the file is an attribute; what is no attribute is refused."""

import os
from dataclasses import dataclass
from enum import Enum

import yaml

#: Whether this is the version that calls msprobe itself.
SHIPS_MSPROBE = os.environ.get("STAND_IN_SHIPS_MSPROBE") == "1"


class VllmMode(Enum):
    ORIGIN = 0
    VLLM = 1
    DEBUG = 2


@dataclass
class SamplingConfig:
    temperature: float = 1.0
    max_tokens: int = 3
    pad_token_id: int = 0


@dataclass
class ActorConfig:
    learning_rate: float = 0.1


@dataclass
class RefConfig:
    ref_model_batch_size: int = 2


@dataclass
class RewardConfig:
    verifier_weight: list = None


@dataclass
class GenerateConfig:
    use_vllm: int = 0
    sampling_config: SamplingConfig = SamplingConfig


@dataclass
class RLConfig:
    epochs: int = 2
    num_generations: int = 2
    beta: float = 0.1
    enable_oldpolicy: bool = True
    enable_full_monitor: bool = False
    deterministic: str = "OFF"
    seed: int = None


@dataclass
class Context:
    mode: int = 0


@dataclass
class MsprobeConfig:
    msprobe: bool = False
    dump_path: str = "./msprobe_dump"
    key_data_dump: bool = False
    configurations_dump: bool = False


@dataclass
class GRPOConfig:
    actor_config = ActorConfig
    ref_config = RefConfig
    reward_config = RewardConfig
    generate_config = GenerateConfig
    rl_config = RLConfig
    context = Context
    if SHIPS_MSPROBE:
        msprobe_config = MsprobeConfig

    def __init__(self, file_path):
        with open(file_path, encoding="utf-8") as file:
            data = yaml.safe_load(file)
        for key in data:
            setattr(self, key, getattr(self, key)(**data[key]))
