"""Write what of the documents the code itself says: `python docs/generate.py`.

Between `<!-- generated: NAME -->` and `<!-- end -->` of configuration.md stand the keys of
msprobe_config, made of configuration.yaml and the defaults of ProbeConfig. Of api.md it is the
public names, made of their docstrings; their Chinese stands in api_zh.yaml.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

_GENERATED = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def configuration(language: str) -> dict[str, str]:
    """Return the generated part of configuration.md, by name."""
    from mindrlhf_msprobe import ProbeConfig

    defaults = ProbeConfig().to_json()
    head, comma = {
        "en": ("| key | default | meaning |", ", "),
        "zh": ("| 配置项 | 默认值 | 含义 |", "、"),
    }[language]
    lines: list[str] = []
    for group in yaml.safe_load((HERE / "configuration.yaml").read_text(encoding="utf-8")):
        lines += [f"## {group['title'][language]}", "", head, "|---|---|---|"]
        for keys, texts in group["keys"].items():
            names = keys.split(", ")
            shown = [_codes(names), _codes([json.dumps(defaults[name]) for name in names])]
            if len({*map(str, map(defaults.get, names))}) == 1:
                shown[1] = _codes([json.dumps(defaults[names[0]])])
            cells = [comma.join(codes) for codes in shown]
            lines.append(f"| {cells[0]} | {cells[1]} | {texts[language]} |")
        lines.append("")
    return {"keys": "\n".join(lines)}


def _codes(texts: list[str]) -> list[str]:
    return [f"`{text}`" for text in texts]


def fresh(page: Path, parts: dict[str, Any]) -> str:
    """Return a page's text with its generated parts as they should be."""
    text = page.read_text(encoding="utf-8")
    return _GENERATED.sub(lambda found: f"{found[1]}\n{parts[found[2]]}\n{found[3]}", text)


def pages() -> dict[Path, str]:
    """Return what every generated page should hold."""
    return {
        page: fresh(page, parts)
        for language in ("en", "zh")
        for page, parts in ((HERE / language / "configuration.md", configuration(language)),)
    }


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")
