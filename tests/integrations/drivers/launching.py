"""Scripts, started as their users start them: in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

#: What `mindrlhf-msprobe run` is, for an interpreter.
RUN = ("-m", "mindrlhf_msprobe", "run")
#: A section that records all there is without a critic.
EVERYTHING = {
    **dict.fromkeys(("msprobe", "key_data_dump", "configurations_dump"), True),
    **dict.fromkeys(("actor_infer_dump", "actor_train_dump", "reference_dump"), True),
    **{"step_end": 9, "token_range_end": 9},
}
#: The keys of what is played as a rollout, and of what generates by token.
ROLLOUT = {"probe_rollout", "probe_rollout.batch"}
OF_GENERATION = {"rollout_log_prob", "rollout_prompts", "rollout_tokens"}
#: Those of PPO, without those of its loss.
OF_PPO = {
    *(*ROLLOUT, *OF_GENERATION, "old_log_prob_tokens"),
    *("prompts", "responses", "scores", "old_log_prob", "values", "ref_log_prob"),
    *("rewards", "advantages", "returns", "loss", "lr", "overflow", "loss_scale"),
}


def python(
    *arguments: object, cwd: Path, timeout: float = 300, **settings: str
) -> subprocess.CompletedProcess[Any]:
    """Run this interpreter with arguments; `settings` are environment variables."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    environment.pop("PYTHONSAFEPATH", None)
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={**environment, **settings},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
