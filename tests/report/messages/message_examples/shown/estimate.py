"""Parameters of the texts of an estimate."""

from mindrlhf_msprobe.common.message import message

EXAMPLES = {
    "left_out": [{"what": "actor_update", "why": [message("coverage.dynamic_shape")]}],
    "not_recorded": [{"what": ["critic_update"]}, {"what": ["actor_update", "critic_update"]}],
    "filtered": [{"keys": ["include", "exclude"]}],
}
