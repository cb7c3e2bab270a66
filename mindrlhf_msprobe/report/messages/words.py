"""Lists, plurals and names as each language shows them: the words behind `{name:word …}`.

`CHOICES` say, for both languages, which piece is said where several parameters decide it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from mindrlhf_msprobe.common.printable import few_numbers, few_ranges, shortened, size, spans
from mindrlhf_msprobe.report.messages.templates import Choice, Shape

_FEW = 8
_FEW_SPANS = 6
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")
_ENDINGS = {1: "st", 2: "nd", 3: "rd"}


def ordinal(number: int) -> str:
    """Return a number from 1 on in words: first, second, 11th."""
    if number <= len(_ORDINALS):
        return _ORDINALS[number - 1]
    ending = "th" if number // 10 % 10 == 1 else _ENDINGS.get(number % 10, "th")
    return f"{number}{ending}"


def _listed(items: Sequence[object], last: str, between: str) -> str:
    """Return `a`, `a and b`, `a, b and c`."""
    texts = [str(item) for item in items]
    if len(texts) < 2:
        return "".join(texts)
    return f"{between.join(texts[:-1])} {last} {texts[-1]}"


def _some(
    names: Sequence[object], argument: str, params: Mapping[str, Any], between: str, more: str
) -> str:
    """Return names and how many are left out.

    Args:
        argument: how many are shown, e.g. `4`; the parameter that counts those left out; or
            `of`, and the parameter that counts all.
    """
    if argument.isdigit():
        names, left = names[: int(argument)], len(names) - int(argument)
    elif argument.startswith("of "):
        left = params[argument.removeprefix("of ")] - len(names)
    else:
        left = params[argument]
    shown = between.join(map(str, names))
    return shown + (more.format(left=left) if left > 0 else "")


def _non_finite(nan: int, argument: str, params: Mapping[str, Any], each: str, between: str) -> str:
    """Return how many elements are NaN and how many infinite, of those that there are.

    Args:
        argument: the parameter that counts the infinite ones.
    """
    counts = ((nan, "NaN"), (params[argument], "Inf"))
    return between.join(each.format(n, what) for n, what in counts if n)


def _of_section(shape: Callable[..., str], names: Mapping[str, str], spaces: str) -> Shape:
    """Return the shape of sections of run.json, as `shape` joins what they are called."""
    return lambda sections, argument, params: shape(
        [names.get(name, name.replace("_", spaces)) for name in sections], argument, params
    )


def _held(numbers: Sequence[int], argument: str, params: Mapping[str, Any]) -> str:
    """Return sorted numbers of a thing, which a parameter names: steps 0 to 2 and 5."""
    what = params[argument]
    if not numbers:
        return f"no {what}"
    parts: list[str] = []
    for span in spans(numbers).split(", "):
        first, _, last = span.partition("-")
        if last and int(last) == int(first) + 1:
            parts += [first, last]
        else:
            parts.append(f"{first} to {last}" if last else first)
    listed = " and ".join(part for part in (", ".join(parts[:-1]), parts[-1]) if part)
    return f"{what}{'s' * (len(numbers) > 1)} {listed}"


def few_spans(found: Sequence[Sequence[int]]) -> str:
    """Return spans of places as `0-2, 5`, at most a few of them."""
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in found[:_FEW_SPANS]]
    return ", ".join(shown) + (", …" if len(found) > _FEW_SPANS else "")


def few_pairs(moved: Sequence[Sequence[int]], of: int) -> str:
    """Return which places of B hold which ones of A: `B[0] = A[2], …`; `of` is how many moved."""
    shown = [f"B[{i}] = A[{j}]" for i, j in moved[:_FEW_SPANS]]
    return ", ".join(shown) + (", …" if of > len(shown) else "")


def _joined(items: Sequence[object], between: str, params: Mapping[str, Any]) -> str:
    return between.join(map(str, items))


def equation(value: float, sign: str, params: Mapping[str, Any]) -> str:
    """Return how B comes of A, with what a factor is: a fraction, or the root of one."""
    said = f"B = A {sign} ({value:.7g})" if value < 0 else f"B = A {sign} {value:.7g}"
    if (fraction := params.get("fraction")) is not None:
        p, q = fraction
        return said if q == 1 else f"{said} = {p}/{q}"
    if (root := params.get("root")) is None:
        return said
    p, q = root
    return said + (f" = √({p}/{q})" if q > 1 else f" = √{p}")


def _changes(
    then: Sequence[tuple[int, str]],
    left: str,
    params: Mapping[str, Any],
    *,
    each: str,
    more: str,
    between: str,
) -> str:
    """Return a setting's values in time; a parameter counts what is not listed before the last."""
    parts = [each.format(step, value) for step, value in then]
    if params[left]:
        parts.insert(-1, more.format(params[left]))
    return between.join(parts)


def _left(more: str) -> Shape:
    """Return the shape of a list: how many are not in it, of all that a parameter counts."""

    def shape(items: Sequence[object], count: str, params: Mapping[str, Any]) -> str:
        left = params[count] - len(items)
        return more.format(left=left) if left > 0 else ""

    return shape


_EN_SECTIONS = {
    "networks": "the settings of networks and optimizers",
    "generation_settings": "what generation ran with",
}
_ZH_SECTIONS = {
    "versions": "版本",
    "device": "设备",
    "world": "并行规模",
    "seeds": "随机种子",
    "determinism": "确定性设置",
    "networks": "网络与优化器配置",
    "generation": "生成参数",
    "generation_settings": "生成参数",
    "modes": "训练/推理模式",
    "cells": "Cell 属性",
    "optimizers": "优化器",
    "environment": "环境变量",
    "configurations": "训练配置",
    "msprobe_config": "采集配置",
    "initial_weights": "初始权重",
    "packages": "软件包",
    "checkpoints": "权重文件",
    "data": "数据",
    "script": "脚本",
    "random_calls": "随机操作",
}
_ZH_SIDES = {"A": "A（标杆）", "B": "B（待比对）"}


def _few(more: str, between: str) -> Shape:
    some = partial(_some, between=between, more=more)
    return lambda names, argument, params: some(names, str(_FEW), params)


_BOTH: dict[str, Shape] = {
    "spans": lambda numbers, *_: spans(numbers),
    "sorted": lambda numbers, *_: spans(sorted(numbers)),
    "numbers": lambda numbers, *_: few_numbers(numbers),
    "ranges": lambda ranges, *_: few_ranges(ranges),
    "places": lambda found, *_: few_spans(found),
    "quoted": lambda patterns, between, _: between.join(f"'{one}'" for one in patterns),
    "plus": lambda number, more, _: str(number + int(more)),
    "size": lambda number, *_: str(abs(number)),
    "shortened": lambda text, most, _: shortened(text, int(most)),
    "bytes": lambda number, *_: size(number),
    "millions": lambda number, *_: f"{number / 1e6:.1f}",
    "length": lambda items, *_: str(len(items)),
    "last": lambda items, *_: str(items[-1]),
    "capital": lambda text, *_: text[:1].upper() + text[1:],
    "other": lambda run, *_: "B" if run == "A" else "A",
    "equation": equation,
    "pairs": lambda moved, of, params: few_pairs(moved, params.get(of, 0)),
    "epsilons": lambda values, *_: " … ".join(dict.fromkeys(f"{e:.2g}" for e in values)),
    "shifted_index": lambda by, *_: f"A[i{-by:+d}]",
    "unaccounted": lambda others, _, params: str(others - params["before"] - params["by"] or ""),
}
_EN_SOME = partial(_some, between=", ", more=" and {left} more")
_ZH_SOME = partial(_some, between="、", more=" 等（另有 {left} 个）")

#: By language: word → how it shows a parameter.
SHAPES: Mapping[str, Mapping[str, Shape]] = {
    "en": {
        **_BOTH,
        "ordinal": lambda number, *_: ordinal(number),
        "next_ordinal": lambda number, *_: ordinal(number + 1),
        "left": _left(" and {left} more"),
        "changes": partial(
            _changes, each="from step {} on {}", more="… {} more changes …", between=", "
        ),
        "label": lambda section, *_: section.replace("_", " "),
        "ranks": lambda ranks, *_: f"rank{'s' * (len(ranks) != 1)} {few_numbers(ranks)}",
        "listed": lambda items, *_: _listed(items, "and", ", "),
        "some": _EN_SOME,
        "few": _few(" and {left} more", ", "),
        "non_finite": partial(_non_finite, each="{} {}", between=" and "),
        "section": lambda name, *_: _EN_SECTIONS.get(name, name.replace("_", " ")),
        "sections": _of_section(_joined, _EN_SECTIONS, " "),
        "some_sections": _of_section(_EN_SOME, _EN_SECTIONS, " "),
        "held": _held,
    },
    "zh": {
        **_BOTH,
        "listed": lambda items, *_: _listed(items, "和", "、"),
        "some": _ZH_SOME,
        "few": _few(" 等，另有 {left} 个", "、"),
        "non_finite": partial(_non_finite, each="{} 个 {}", between="、"),
        "section": lambda name, *_: _ZH_SECTIONS.get(name, name),
        "sections": _of_section(_joined, _ZH_SECTIONS, "_"),
        "some_sections": _of_section(_ZH_SOME, _ZH_SECTIONS, "_"),
        "left": _left(" 等（另有 {left} 个）"),
        "changes": partial(
            _changes, each="自 step {} 起为 {}", more="… 另有 {} 次变化 …", between="，"
        ),
        "label": lambda name, *_: (
            f"{_ZH_SECTIONS[name]}（{name}）" if name in _ZH_SECTIONS else name
        ),
        "other_side": lambda run, *_: _ZH_SIDES["B" if run == "A" else "A"],
        "side": lambda run, *_: _ZH_SIDES.get(run, str(run)),
        "behind": lambda words, *_: words if "\u4e00" <= words[:1] <= "\u9fff" else f" {words}",
    },
}


_TIMES = 8  # times as many parameters as those that differ: an optimizer acts on all of them


def _not_saved(given: Sequence[str] = (), unlike: Sequence[str] = (), **_: Any) -> str | None:
    """Return what is said of what a loss is given and was not saved; loss_inputs holds it all."""
    if not (given or unlike):
        return "save_inputs"
    return None if "loss_inputs" in (*given, *unlike) else "save_set"


def _to_the_end(piece: str) -> Choice:
    """Return the choice of a piece of one span that reaches to the end of an axis, not from 0."""

    def choice(spans: Sequence[Sequence[int]], size: int, **_: Any) -> str | None:
        first, last = spans[0]
        return piece if len(spans) == 1 and first and last == size - 1 else None

    return choice


#: By area: the place of a template → what names its piece.
CHOICES: Mapping[str, Mapping[str, Choice]] = {
    "check_accuracy": {
        "in_cell": lambda call, cell, **_: (
            "inside_cell" if cell and not call.startswith("Cell.") else None
        )
    },
    "coverage": {
        "step_or_steps": lambda steps, **_: (
            "one_step" if steps[0][0] == steps[-1][1] else "several_steps"
        )
    },
    "culprit": {
        "or_written": lambda parameters, of, **_: (
            "if_written" if _TIMES * parameters < of else None
        ),
        "not_saved": _not_saved,
    },
    "inside": {
        # Of a factor that is the root of a fraction.
        "as_deviations": lambda root=None, fraction=None, ddof=0, **_: (
            "of_deviations" if fraction is None and root is not None and ddof > 2 else None
        ),
        "from_there": _to_the_end("to_the_end"),
        "from_there_alone": _to_the_end("to_the_end_alone"),
    },
}
