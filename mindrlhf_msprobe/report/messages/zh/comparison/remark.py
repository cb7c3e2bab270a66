"""What differs before any tensor and may explain a divergence, in Chinese."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages.zh.words import section_words


def _agree(role: str | None, networks: int, parameters: int) -> str:
    whose = f"{networks} 个网络" if role is None else f" {role} "
    return f"{whose}的初始权重一致（{parameters} 个权重）".lstrip()


def _weights_agree(role: str | None, networks: int, parameters: int) -> str:
    return f"{_agree(role, networks, parameters)}。"


def _weights_agree_but(role: str | None, networks: int, parameters: int, but: str) -> str:
    return f"{_agree(role, networks, parameters)}，但{but}。"


def _only_random(role: str | None, networks: int, parameters: int) -> str:
    agree = _agree(role, networks, parameters)
    return f"{agree}；配置中只有 Python 随机数生成器的状态不同。"


def _no_setting(role: str | None, networks: int, parameters: int) -> str:
    return f"{_agree(role, networks, parameters)}，两侧都有采集的配置也没有不同。"


def _against(a: str | None, b: str | None) -> str:
    a, b = ("未设置" if text is None else text for text in (a, b))
    return f"A 为 {a}，B 为 {b}"


def _seed(name: str, a: str | None, b: str | None) -> str:
    which = "" if name == "mindspore" else f" {name} "
    return f"随机种子{which}不同：{_against(a, b)}"


def _generator(whose: str, step: int | None) -> str:
    since = "" if step is None else f"从 step {step} 起"
    return f"{whose} 随机数生成器的状态{since}不同"


def _determinism(name: str, a: str | None, b: str | None) -> str:
    return f"确定性配置 {name} 不同：{_against(a, b)}"


def _settings(count: int, section: str, name: str, a: str | None, b: str | None) -> str:
    first = f"{section_words(section)} {name}：{_against(a, b)}"
    return f"有 1 项配置不同：{first}" if count == 1 else f"有 {count} 项配置不同，首项 {first}"


TEXTS = {
    "weights_agree": _weights_agree,
    "weights_agree_but": _weights_agree_but,
    "only_random": _only_random,
    "no_setting": _no_setting,
    "weights_differ": (
        "{role} 的初始权重有 {different} 个不同（共 {compared} 个），首个为 {first}：请检查加载的 "
        "checkpoint。"
    ),
    "other_parameters": (
        "{role} 两侧网络的权重不是同一组：{count} 个仅一侧有，首个为 {side} 侧的 {first}。"
    ),
    "sentence": "{what}。",
    "seed": _seed,
    "generator": _generator,
    "determinism": _determinism,
    "settings": _settings,
}
