"""What is concluded of one run or of two, in the words that the script prints."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.replay.offline.computing import BITS, Node, Recomputed, prepare
from mindrlhf_msprobe.replay.offline.judging import FORMULA, Judged, judge
from mindrlhf_msprobe.replay.offline.script import template
from mindrlhf_msprobe.replay.offline.script.folder import ENTRY, SCRIPT, SIDES, WORDS
from mindrlhf_msprobe.storage.operators import OperatorName, parse_operator


def conclude(output: Path, called: Any, network: Any = None) -> None:
    """Judge what lies in a folder, and write into each entry.json what was concluded.

    Args:
        called: the operator, or None for what the network holds.

    Raises:
        RunError: the network is not the one of which the entry was recorded, or what comes out
            has another shape.
    """
    template.WORDS.update(json.loads((output / WORDS).read_text(encoding="utf-8")))
    folders = [output / side for side in SIDES if (output / side / ENTRY).exists()]
    sides = {folder.name.upper(): Recomputed(folder, called, network) for folder in folders}
    found = {letter: judge(side, _operator(side, called)) for letter, side in sides.items()}
    answers = {letter: [_headline(letter, one)] for letter, one in found.items()}
    if len(sides) > 1:
        answers[[*sides][-1]] += _of_both(sides, found)
    for letter, side in sides.items():
        judged = _plain(found[letter], answers[letter])
        content = json.loads((side.folder / ENTRY).read_text(encoding="utf-8"))
        content |= {"judged": judged, "lists": side.sequence is list}
        text = json.dumps(finite(content), ensure_ascii=False, indent=1, allow_nan=False)
        (side.folder / ENTRY).write_text(text, encoding="utf-8", errors="backslashreplace")


def _operator(side: Recomputed, called: Any) -> OperatorName | None:
    return None if called is None else parse_operator(side.entry["entry"])


def finite(found: Any) -> Any:
    """Return what was found as JSON has it: a number that is not finite is a text there."""
    return json.loads(json.dumps(found), parse_constant=str)


def worded(code: str, **params: Any) -> str:
    """Return a text; names of a dump cannot move the cursor in it."""
    text = template.WORDS[code].format(**params)
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def _plain(found: Judged, answer: list[str]) -> dict[str, Any]:
    """Return what stands in entry.json of it."""
    values = {name: {**value, "said": _said(value)} for name, value in found.values.items()}
    notes = dict.fromkeys(worded(code, **params) for code, params in found.notes)
    return {"verdict": found.verdict, "answer": answer, "notes": [*notes], "values": values}


def _said(value: Mapping[str, Any]) -> str:
    """Return what is thought of one value."""
    verdict = value["verdict"]
    if value["dtype"] not in BITS:
        return worded("is_equal" if verdict == "ordinary" else "is_other")
    by = "_formula" if value.get("by") == FORMULA and verdict != "undecided" else ""
    return worded(f"is_{verdict}{by}", share=f"{value.get('share', 0.0):.2g}")


def _headline(letter: str, found: Judged) -> str:
    """Return what is concluded of one side, by the value that is furthest off."""
    values = {
        name: value
        for name, value in found.values.items()
        if value["verdict"] == found.verdict and value.get("by") in value
    }
    if found.verdict == "ordinary" and not values:
        return worded("same", side=letter)
    if found.verdict == "undecided" or not values:
        return worded("undecided", side=letter)
    worst = max(values, key=lambda name: values[name]["share"])
    by = values[worst]["by"]
    apart, formula = values[worst][by], "_formula" if by == FORMULA else ""
    known = {"side": letter, "value": worst, "dtype": "float64" if formula else by.lower()}
    if found.verdict == "ordinary":
        ulp = max(value[value["by"]]["ulp"] for value in values.values())
        return worded(f"agrees{formula}", ulp=f"{ulp:.2g}", **known)
    if math.isinf(apart["max_abs"]):
        return worded("not_finite", **known)
    share = apart["relative"]
    return worded(f"off{formula}", by=f"{share:.1%}" if share >= 1e-3 else f"{share:.1e}", **known)


def _of_both(sides: Mapping[str, Recomputed], found: Mapping[str, Judged]) -> list[str]:
    """Return which of two runs is wrong, and whether both were given the same."""
    wrong = [letter for letter, one in found.items() if one.verdict == "wrong"]
    lines = [worded("inputs_agree" if _same_inputs(*sides.values()) else "inputs_differ")]
    if len(wrong) == len(sides):
        lines.append(worded("both_wrong"))
    elif wrong and "ordinary" in (one.verdict for one in found.values()):
        lines.append(worded("one_is_wrong", side=wrong[0]))
    return lines


def _same_inputs(a: Recomputed, b: Recomputed) -> bool:
    """Return whether what goes in is the same in both runs, bit for bit."""
    files = [_given(side) for side in (a, b)]
    return len(files[0]) == len(files[1]) and all(
        (x["dtype"], x["shape"]) == (y["dtype"], y["shape"])
        and a.array(x).tobytes() == b.array(y).tobytes()
        for x, y in zip(*files)
    )


def _given(side: Recomputed) -> list[Node]:
    given: list[Node] = [*side.entry["given"], *side.weights]
    return given


def main() -> None:
    """Judge the folder that is named, by the network that its script builds: in a process of its
    own, since that may print, or end it."""
    import runpy

    from mindrlhf_msprobe.errors import MsprobeError

    output, device, result = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    import mindspore

    if device:
        mindspore.set_device(device)
    prepare()
    sys.path.insert(0, str(Path.cwd()))
    try:
        subject = runpy.run_path(str(output / SCRIPT))["subject"]
        conclude(output, *subject())
    except MsprobeError as error:
        result.write_text(json.dumps({"refused": str(error)}), encoding="utf-8")


if __name__ == "__main__":
    main()
