"""The three networks of the demo: actor, reference and critic, small enough for a CPU."""

from collections.abc import Mapping
from typing import Any

import mindspore as ms
import numpy as np
from mindformers.models.llama import LlamaConfig, LlamaForCausalLM, LlamaModel
from mindspore import Tensor, nn


class Critic(nn.Cell):
    """Value every position of a sequence: a decoder backbone and a linear head."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.backbone = LlamaModel(config)
        self.value_head = nn.Dense(config.hidden_size, 1)

    def construct(self, tokens: Tensor) -> Tensor:
        """Value each position.

        Args:
            tokens: int32 [batch, seq_length].

        Returns:
            values, float32 [batch, seq_length, 1].
        """
        return self.value_head(self.backbone(tokens))


def build_networks(
    actor_config: Mapping[str, Any],
    critic_config: Mapping[str, Any],
    vocab_size: int,
    seq_length: int,
    seed: int,
) -> dict[str, nn.Cell]:
    """Build actor, reference and critic on the CPU in PyNative mode.

    The reference is a cell of its own, frozen, and starts with the actor's weights.

    Args:
        actor_config: the LlamaConfig sizes of actor and reference (hidden_size, num_layers, ...).
        critic_config: those of the critic's backbone.
        vocab_size: number of token ids; id 0 is the padding.
        seq_length: tokens of prompt and response together.
        seed: fixes every weight.
    """
    if ms.get_context("device_target") != "CPU":  # set_device raises once an operator has run
        ms.set_device("CPU")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    # Operators this small cost more to queue than to compute: it is several times faster not to.
    ms.runtime.launch_blocking()
    rng = np.random.default_rng(seed)

    actor = LlamaForCausalLM(llama_config(actor_config, vocab_size, seq_length))
    initialize(actor, rng)

    reference = LlamaForCausalLM(llama_config(actor_config, vocab_size, seq_length))
    weights = {parameter.name: parameter.asnumpy().copy() for parameter in actor.get_parameters()}
    for parameter in reference.get_parameters():
        parameter.set_data(Tensor(weights[parameter.name]))
        parameter.requires_grad = False

    critic = Critic(llama_config(critic_config, vocab_size, seq_length))
    initialize(critic, rng)

    networks = {"actor": actor, "reference": reference, "critic": critic}
    for network in networks.values():
        # In training mode MindFormers returns its own cross-entropy; PPO needs the logits.
        network.set_train(False)
    return networks


def llama_config(sizes: Mapping[str, Any], vocab_size: int, seq_length: int) -> LlamaConfig:
    """Complete `sizes` by what the task needs and what a CPU can compute: plain float32."""
    return LlamaConfig(
        **sizes,
        vocab_size=vocab_size,
        seq_length=seq_length,
        pad_token_id=0,
        use_past=False,
        use_flash_attention=False,
        fused_rms_norm=False,
        use_rope_slice=True,
        compute_dtype="float32",
        param_init_type="float32",
        embedding_init_type="float32",
        layernorm_compute_type="float32",
        softmax_compute_type="float32",
        rotary_dtype="float32",
        residual_dtype="float32",
    )


def initialize(network: nn.Cell, rng: np.random.Generator) -> None:
    """Draw every matrix from N(0, 1 / columns); leave the norms at one and the biases at zero.

    numpy draws them, not MindSpore, so that they are the same in every version of MindSpore.
    """
    for parameter in network.get_parameters():
        if parameter.ndim == 2:
            weights = rng.normal(0.0, parameter.shape[1] ** -0.5, parameter.shape)
            parameter.set_data(Tensor(weights, ms.float32))
        elif parameter.name.endswith("bias"):
            parameter.set_data(Tensor(np.zeros(parameter.shape), ms.float32))
