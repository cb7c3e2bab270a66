"""Parameters of the texts that say why something of a trainer could not be had."""

from mindrlhf_msprobe.common.message import message

_LOOKED = [
    message("trainer.not_called", what="Worker.load_model (vLLM)"),
    message("trainer.holds_no_cell", what="policy_model", kind="NoneType"),
]

EXAMPLES = {
    "no_vllm_network": [{"worker": "InferWorker", "looked": _LOOKED}],
    "no_variables": [{"of": "f", "names": ["x"]}, {"of": "f", "names": ["x", "y"]}],
    "no_keys": [{"keys": ["prompts"]}, {"keys": ["prompts", "responses"]}],
}
