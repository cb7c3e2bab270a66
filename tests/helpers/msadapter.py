"""Dumps that msprobe makes of MSAdapter: PyTorch's names with MindSpore's tensors.

Written from msprobe's source (`mindspore/dump/cell_processor.py`, `hook_cell/api_register.py`), out
of dumps that the real msprobe made of PyTorch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from helpers import torch_llama

DUMPS = Path(torch_llama.__file__).parent / "data" / "torch"


def of_msadapter(dump: str, root: Path, framework: str, change: str = "") -> Path:
    """Write a dump of PyTorch as MSAdapter's; return its directory.

    Args:
        change: an entry whose output is another one.
    """

    def described(content: Any) -> Any:
        if isinstance(content, list):
            return [*map(described, content)]
        if not isinstance(content, dict):
            return content
        if content.get("type") == "torch.Tensor":
            dtype = content["dtype"].removeprefix("torch.").capitalize()
            kept = {k: v for k, v in content.items() if k not in ("requires_grad", "data_name")}
            return {**kept, "type": "mindspore.Tensor", "dtype": dtype}
        return {name: described(item) for name, item in content.items()}

    for file in (DUMPS / dump / "step0/rank").iterdir():
        if file.suffix != ".json":
            continue
        content = json.loads(file.read_text())
        if file.name == "dump.json":
            content |= {"framework": framework, "data": described(content["data"])}
            if change:
                content["data"][change]["output"][0]["Norm"] *= 1.5
        written = root / "step0" / "rank" / file.name
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(json.dumps(content))
    return root
