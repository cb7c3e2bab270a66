"""Parameters of what goes wrong while recording."""

from mindrlhf_msprobe.storage.directory.hold import Loss

EXAMPLES = {"hold_lost": [{"loss": loss.value} for loss in Loss]}
