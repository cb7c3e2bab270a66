"""Is a recorded value what rounding leads to? By kernels of more bits, and by formulas in numpy.

Where there is a formula that decides, it is the judge: no kernel judges itself. What is
concluded of one run or of two is said in the words that the script prints (`conclude`).
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.message import Message
from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.findings.accuracy import VERDICTS
from mindrlhf_msprobe.replay.offline import template
from mindrlhf_msprobe.replay.offline.computing import (
    BITS,
    LARGEST,
    SMALLEST,
    Node,
    Recomputed,
    array_of,
    prepare,
    values_by_formula,
)
from mindrlhf_msprobe.replay.offline.folder import ENTRY, SCRIPT, SIDES, WORDS
from mindrlhf_msprobe.replay.offline.template import distance
from mindrlhf_msprobe.storage.operators import OperatorName, parse_operator

DISTURBED = 3  # runs in which every value that goes in is off by one rounding
FORMULA = "formula"


@dataclass
class Judged:
    """What is thought of one side.

    Attributes:
        verdict: ordinary (rounding explains what is apart), wrong or undecided.
        values: name → its `verdict`, `by` what (a dtype, or `formula`), `share` of what rounding
            may do, and the distances from what it was judged by.
        reference: the dtype with more bits in which kernels computed it; "" for none.
        notes: (code, parameters) of what else is to be said.
    """

    verdict: str = "undecided"
    values: dict[str, dict[str, Any]] = field(default_factory=dict)
    reference: str = ""
    notes: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def conclude(self) -> None:
        """Let the verdict be that of the most suspicious value."""
        verdicts = {value["verdict"] for value in self.values.values()} or {"undecided"}
        self.verdict = next(verdict for verdict in VERDICTS if verdict in verdicts)


def judge(
    side: Recomputed, operator: OperatorName | None = None, *, kernels: bool = True
) -> Judged:
    """Judge what was recorded of a call.

    Args:
        operator: its name; None for what a network holds.
        kernels: whether kernels compute, too, where the formula has decided everything.

    Raises:
        RunError: what comes out here has another shape.
    """
    values: dict[str, dict[str, Any]] = {}
    if operator is not None:
        primitive = side.called if operator.kind == "Primitive" else None
        with suppress(Exception):  # no formula, or arguments that it does not know
            values = dict(values_by_formula(side, operator, primitive))
        values = {name: one for name, one in values.items() if one["verdict"] != "undecided"}
    if not kernels and values and values.keys() >= side.recorded.keys():
        found = Judged(values=values)
    else:
        found = by_kernels(side)
        found.notes = [note for note in found.notes if note[1].get("value") not in values]
        for name, one in values.items():
            found.values[name] = {**found.values.get(name, {}), **one}
            found.values[name].pop("here", None)  # that is by a kernel
    for name, one in values.items():
        if "dropped" in one:
            shares = {"dropped": f"{one['dropped']:.1%}", "p": f"{one['probability']:.1%}"}
            found.notes.append(("dropped_other", {"value": name, **shares}))
        elif one.get("by_mask"):  # the mask of a dropout was taken from its output
            found.notes.append(("by_mask", {"value": name}))
    found.conclude()
    if recomputed := side.entry["recomputed"]:
        found.notes.append((f"recomputed_{recomputed}", {}))
    return found


def by_kernels(side: Recomputed) -> Judged:
    """Judge a side by what it computes here, in more bits.

    Raises:
        RunError: what comes out here has another shape.
    """
    found = Judged()
    runs = _runs(side, found)
    if "again" not in runs:
        found.values = {name: _undecided(node) for name, node in side.recorded.items()}
        return found
    again = runs["again"].arrays
    for name, node in side.recorded.items():
        if name not in again:
            continue
        if tuple(node["shape"]) != again[name].shape:
            shapes = {"recorded": node["shape"], "built": list(again[name].shape)}
            why = template.WORDS["other_output"].format(value=name, **shapes)
            raise RunError(Message("replay.refused", {"why": why}))
        found.values[name] = _judged(side, name, runs, found)
    found.conclude()
    return found


class _Run:
    """What came out of one run: arrays of float64, or of what holds all elements, and dtypes."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.tensors = found
        self.dtypes = {name: str(tensor.dtype) for name, tensor in found.items()}
        arrays = {name: array_of(tensor) for name, tensor in found.items()}
        self.arrays = {n: a.astype(np.result_type(a, np.float64)) for n, a in arrays.items()}


def _runs(side: Recomputed, found: Judged) -> dict[str, _Run]:
    """Compute a side as recorded, twice, in more bits, and disturbed.

    Where it cannot be computed in a dtype, that has no run; the script says why.
    """
    runs: dict[str, _Run] = {}
    try:
        runs = {run: _Run(side.compute()) for run in ("again", "repeated")}
    except Exception as error:  # no kernel here, or arguments that it does not take
        why = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
        found.notes.append(("not_computed", {"error": why[:300]}))
        return {}
    reference = ""
    for dtype in ("Float32", "Float64"):
        if BITS[side.lowest] < BITS[dtype]:
            try:
                runs[dtype] = _Run(side.compute(dtype))
                reference = dtype
            except Exception:  # no kernel of this dtype, or a check that refuses it
                continue
    if reference:
        runs["reference"] = runs[reference]
        for least, of in ((None, "again"), (reference, "reference")):
            runs |= {f"{of}{n}": _Run(side.compute(least, n)) for n in range(DISTURBED)}
        found.reference = reference
    return runs


def _undecided(node: Node) -> dict[str, Any]:
    return {"dtype": node["dtype"], "shape": node["shape"], "verdict": "undecided"}


def _judged(side: Recomputed, name: str, runs: Mapping[str, _Run], found: Judged) -> dict[str, Any]:
    """Return the distances and the verdict of one value, and note what else is to be said."""
    node, reference = side.recorded[name], found.reference
    recorded, dtype, again = side.array(node), node["dtype"], runs["again"]
    value = _undecided(node)
    for run in ("again", reference):
        if run and name in runs[run].tensors:
            value[run] = distance(recorded, array_of(runs[run].tensors[name]), dtype)
    if not np.array_equal(again.arrays[name], runs["repeated"].arrays[name], equal_nan=True):
        found.notes.append(("differs_between_runs", {"value": name}))
    if dtype not in BITS or not recorded.size:
        value["verdict"] = "undecided" if value["again"]["max_abs"] else "ordinary"
        return value
    if not reference or name not in runs["reference"].arrays:
        return value
    value["by"] = reference
    code = _by_allowance(side, name, runs, value)
    came = runs["reference"].dtypes[name]
    if came in BITS and BITS[came] <= BITS[side.lowest]:
        value["verdict"], code = "undecided", "cast_inside"
    if code:
        share = f"{value['here']:.2g}"
        said = {"value": name, "dtype": came, "lowest": side.lowest, "share": share}
        found.notes.append((code, said))
    return value


def _by_allowance(
    side: Recomputed, name: str, runs: Mapping[str, _Run], value: dict[str, Any]
) -> str:
    """Judge a value by what rounding explains; return a code of what is to be said, or ""."""
    node, dtype = side.recorded[name], value["dtype"]
    arrays = {run: one.arrays[name] for run, one in runs.items() if name in one.arrays}
    recorded, exact, again = side.array(node), arrays["reference"], arrays["again"]
    recorded = recorded.astype(np.result_type(recorded, np.float64))
    disturbed = {
        of: [arrays[f"{of}{n}"] for n in range(DISTURBED)] for of in ("again", "reference")
    }
    gradient = name.startswith("gradient:")
    moved = [moves(arrays[of], others, gradient) for of, others in disturbed.items()]
    lowest = min(dtype, side.lowest, key=BITS.__getitem__)
    # How long the longest sum may be that leads to a tensor of the size.
    shapes = [one["shape"] for one in (*side.inputs, *side.weights)]
    axes = [n for shape in shapes for n in shape]
    length = max([1, *axes, *(math.prod(shape) // recorded.size for shape in shapes)])
    allowed = allowance(exact, np.maximum(*moved), lowest, length) + node.get("rounding", 0.0)
    share = float(np.max(differences(recorded, exact, dtype) / allowed))
    here = float(np.max(differences(again, exact, dtype) / allowed))
    value.update(share=share, here=here)
    # Two runs of the same are further apart than sums in another order are.
    apart = np.linalg.norm(differences(arrays["repeated"], again, dtype))
    if apart > np.linalg.norm(again[np.isfinite(again)]) * 2.0 ** -(BITS[dtype] / 2):
        return "random"
    if share <= 1:
        if are_rounded(exact, disturbed["reference"], lowest):
            return "fewer_bits"
        value["verdict"] = "ordinary"
    elif share > (64 if gradient else 8) or here < share / 4:
        value["verdict"] = "wrong"
    if here <= 1:
        return ""
    return "wrong_here" if share > 1 else "other_here"


def differences(recorded: np.ndarray, computed: np.ndarray, dtype: str) -> np.ndarray:
    """Return how far the elements of two arrays are apart; inf where one alone is not finite."""
    with np.errstate(all="ignore"):
        same = (recorded == computed) | (np.isnan(recorded) & np.isnan(computed))
        if dtype in LARGEST:  # it has no number for them
            same |= np.isinf(recorded) & (np.abs(computed) > LARGEST[dtype])
        apart = np.where(same, 0.0, np.abs(recorded - computed))
    return np.where(np.isnan(apart), np.inf, apart)


def moves(result: np.ndarray, disturbed: list[np.ndarray], gradient: bool) -> np.ndarray:
    """Return how far the elements of a result move where what goes in is off by one rounding.

    Two roundings may cancel: no element moves less than its row does on average; of a gradient,
    in which what was rounded on the way forward may cancel, than the whole does.
    """
    with np.errstate(all="ignore"):
        moved = np.max([np.abs(other - result) for other in disturbed], axis=0)
    moved = np.where(np.isfinite(moved), moved, 0.0)
    axis = -1 if moved.ndim and not gradient else None
    return np.maximum(moved, np.sqrt(np.mean(moved**2, axis=axis, keepdims=True)))


def are_rounded(exact: np.ndarray, disturbed: list[np.ndarray], dtype: str) -> bool:
    """Return whether a dtype holds all that moved with inputs that it does not hold.

    Then the kernel computes in that dtype, whatever it is given.
    """
    found = np.concatenate([other[other != exact] for other in disturbed])
    with np.errstate(all="ignore"):
        found = found[np.isfinite(found) & (found != np.rint(found))].real
        held = found.astype(np.float16 if dtype == "Float16" else np.float32).astype(np.float64)
    if dtype == "BFloat16":
        held[(found.astype(np.float32).view(np.uint32) & 0xFFFF) != 0] = np.nan
    return bool(found.size) and bool((held == found).all())


def allowance(exact: np.ndarray, moved: np.ndarray, dtype: str, length: int) -> np.ndarray:
    """Return how far from the exact value rounding may lead, for each element.

    What one rounding of all that goes in does, and one of what comes out, times 64, or 4 times the
    root of the length of sums where that is more: kernels approximate functions, and add up in any
    order. Times 16 below float32, where they compute in more bits than they store.

    Args:
        moved: by one rounding of what goes in, in float64 or in the recorded dtype.
        length: of the longest sum there may be.
    """
    times = max(64.0, 4 * math.sqrt(length)) if BITS[dtype] > 10 else 16.0
    sizes = np.where(np.isfinite(exact), np.abs(exact), 0.0)
    smallest = 2.0 ** (SMALLEST[dtype] - BITS[dtype])
    return times * (moved + sizes * 2.0 ** -(BITS[dtype] + 1) + smallest)


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
    found = {
        letter: judge(side, None if called is None else parse_operator(side.entry["entry"]))
        for letter, side in sides.items()
    }
    answers = {letter: [_headline(letter, one)] for letter, one in found.items()}
    if len(sides) > 1:
        answers[[*sides][-1]] += _of_both(sides, found)
    for letter, side in sides.items():
        one, answer = found[letter], answers[letter]
        values = {name: {**value, "said": _said(value)} for name, value in one.values.items()}
        notes = [*dict.fromkeys(worded(code, **params) for code, params in one.notes)]
        judged = {"verdict": one.verdict, "answer": answer, "notes": notes, "values": values}
        content = json.loads((side.folder / ENTRY).read_text(encoding="utf-8"))
        content |= {"judged": judged, "lists": side.sequence is list}
        # JSON has no number that is not finite: it is a text there.
        content = json.loads(json.dumps(content), parse_constant=str)
        text = json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False)
        (side.folder / ENTRY).write_text(text, encoding="utf-8", errors="backslashreplace")


def worded(code: str, **params: Any) -> str:
    """Return a text; names of a dump cannot move the cursor in it."""
    text = template.WORDS[code].format(**params)
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


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
    a, b = sides.values()
    files: list[list[Node]] = [[*side.entry["given"], *side.weights] for side in (a, b)]
    same = len(files[0]) == len(files[1]) and all(
        (x["dtype"], x["shape"]) == (y["dtype"], y["shape"])
        and a.array(x).tobytes() == b.array(y).tobytes()
        for x, y in zip(*files)
    )
    lines = [worded("inputs_agree" if same else "inputs_differ")]
    if len(wrong) == len(sides):
        lines.append(worded("both_wrong"))
    elif wrong and "ordinary" in (one.verdict for one in found.values()):
        lines.append(worded("one_is_wrong", side=wrong[0]))
    return lines


def main() -> None:
    """Judge the folder that is named, by the network that its script builds: in a process of its
    own, since that may print, or end it."""
    import runpy

    from mindrlhf_msprobe.errors import MsprobeError

    output, device, result = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    prepare(device)
    sys.path.insert(0, str(Path.cwd()))
    try:
        subject = runpy.run_path(str(output / SCRIPT))["subject"]
        conclude(output, *subject())
    except MsprobeError as error:
        result.write_text(json.dumps({"refused": str(error)}), encoding="utf-8")


if __name__ == "__main__":
    main()
