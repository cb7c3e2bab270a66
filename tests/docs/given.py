"""What the reader of a page has by himself: a trainer with its networks, runs he recorded."""

from __future__ import annotations

import re
import shutil
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from documents import ROOT, blocks
from helpers.split_runs import network, record_split

CONFIG = """\
msprobe_config:
  msprobe: true
  key_data_dump: true
  actor_infer_dump: true
  actor_train_dump: true
  reference_dump: true
  critic_train_dump: true
"""


class Given:
    """Prepares by name what a page takes for granted, and restores at the end what it changed.

    Args:
        demo_out: what `mindrlhf-msprobe demo --output demo_out` has written.
    """

    def __init__(self, demo_out: Path) -> None:
        self._demo_out = demo_out
        self._undo = ExitStack()

    def __enter__(self) -> Given:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._undo.close()

    def make(self, name: str, directory: Path) -> dict[str, Any]:
        """Prepare `name` in `directory` and return the names that a Python block may use.

        Raises:
            AttributeError: nothing of this name is known.
        """
        return getattr(self, f"_{name}")(directory) or {}

    def _demo(self, directory: Path) -> None:
        """demo_out, as the README's command leaves it in a checkout."""
        shutil.copytree(self._demo_out, directory / "demo_out", symlinks=True)
        (directory / "yaml_examples").symlink_to(ROOT / "yaml_examples")

    def _runs(self, directory: Path) -> None:
        """Two runs of his own, under the names that stand for them."""
        for name in ("RUN_A", "RUN_B", "run_a", "run_b"):
            shutil.copytree(self._demo_out / name.lower(), directory / name)

    def _renamed(self, directory: Path) -> None:
        """The demo's first run, recorded by a model that calls its cells otherwise."""
        renamed = directory / "renamed"
        shutil.copytree(self._demo_out / "run_a", renamed)
        for file in (renamed / "run.json", *renamed.rglob("records.jsonl")):
            text = file.read_text(encoding="utf-8")
            text = re.sub(r"\bmodel\.layers\.(\d+)\.attention\b", r"backbone.layers.\1.attn", text)
            text = re.sub(r"\bmodel\.layers\.(\d+)\.ffn_norm\b", r"norms.\1", text)
            file.write_text(text, encoding="utf-8")

    def _eight_ranks(self, directory: Path) -> None:
        """A network recorded by one rank, and by two stages of two times two."""
        cells = network(np.random.default_rng(1))
        record_split(directory / "A", cells, {})
        record_split(directory / "B", cells, {"pp": 2, "dp": 2, "tp": 2}, local_names=True)

    def _quick_start(self, directory: Path) -> None:
        """The files of quick_start.md."""
        for block in blocks(ROOT / "docs" / "en" / "quick_start.md"):
            if block.file is not None:
                (directory / block.file).write_text(block.text, encoding="utf-8")

    def _msprobe_dumps(self, directory: Path) -> None:
        """Two dumps that msprobe has made."""
        for side in "ab":
            dump = ROOT / "tests" / "helpers" / "data" / "msprobe" / f"statistics_{side}"
            shutil.copytree(dump, directory / f"msprobe_{side}")

    def _mindrlhf(self, directory: Path) -> None:
        """A directory with MindRLHF's GRPO, its script and its YAML: small classes of its names."""
        stand_in = ROOT / "tests" / "integrations" / "stand_ins" / "grpo"
        shutil.copytree(stand_in, directory, dirs_exist_ok=True)
        (directory / "grpo.yaml").write_text("context: {mode: 1}\n", encoding="utf-8")

    def _trainer(self, directory: Path) -> dict[str, Any]:
        """A trainer: networks, data, functions, and its YAML file."""
        import mindspore as ms
        import numpy as np
        from mindspore import Tensor, nn, ops

        class Policy(nn.Cell):
            def __init__(self) -> None:
                super().__init__()
                self.embedding = nn.Embedding(16, 8)
                self.head = nn.Dense(8, 16)

            def construct(self, tokens: Tensor) -> Tensor:
                return self.head(self.embedding(tokens))

        def generate(network: nn.Cell, prompts: Tensor) -> Tensor:
            logits = network(prompts)[:, -1]
            token = ops.argmax(logits, -1, keepdim=True).astype(ms.int32)
            return ops.cat([prompts, token], 1)

        def log_prob(network: nn.Cell, tokens: Tensor) -> Tensor:
            chosen = ops.log_softmax(network(tokens[:, :-1]), -1)
            return ops.gather_elements(chosen, -1, tokens[:, 1:].expand_dims(-1)).squeeze(-1)

        actor, reference, critic = Policy(), Policy(), Policy()
        optimizer = nn.SGD(actor.trainable_params(), learning_rate=0.1)
        settings = {"learning_rate": 0.1, "kl_coef": 0.05}
        data = [Tensor(np.arange(6).reshape(2, 3) + step, ms.int32) for step in range(2)]

        def loss_of(tokens: Tensor) -> Tensor:
            return -log_prob(actor, tokens).mean()

        gradients_of = ms.value_and_grad(loss_of, None, optimizer.parameters)

        def train_step(tokens: Tensor) -> Tensor:
            loss, gradients = gradients_of(tokens)
            optimizer(gradients)
            return loss

        for name in ("ppo.yaml", "grpo.yaml"):
            (directory / name).write_text(CONFIG, encoding="utf-8")
        return {
            **{"actor": actor, "reference": reference, "critic": critic, "optimizer": optimizer},
            **{"generate": generate, "log_prob": log_prob, "train_step": train_step},
            **{"data": data, "batch": data[0], "settings": settings},
        }

    def _graph_mode(self, directory: Path) -> None:
        """A script that runs in GRAPH_MODE."""
        import mindspore as ms

        mode = ms.get_context("mode")
        ms.set_context(mode=ms.GRAPH_MODE)
        self._undo.callback(ms.set_context, mode=mode)
