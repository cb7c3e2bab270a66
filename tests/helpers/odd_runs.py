"""Runs that are odd or hostile, by the real writer: what a page has to show all the same.

Each function takes a directory, which it fills, and returns one run or two.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from helpers.health_runs import HealthRun, a_nan, an_inf
from helpers.runs import Fault, Recording, record_training

Runs = tuple[Path, ...]
Make = Callable[[Path], Runs]

FAULT = Fault("layers.1.mlp", "reference_compute_log_prob", step=1)
NO_LAYERS = dict.fromkeys(
    ("actor_infer_dump", "actor_train_dump", "reference_dump", "critic_train_dump"), False
)

#: Sets this where a text became a script.
ATTACKED = "attacked"
_RUN = f"window.{ATTACKED}=(window.{ATTACKED}||'')+"
#: What each context of a page would take for more than a text: name → text.
HOSTILE = {
    "script": f"<script>{_RUN}'script'</script>",
    "end": f"</script><script>{_RUN}'end'</script>",
    "image": f'<img src=x onerror="{_RUN}1">',
    "svg": f"<svg onload={_RUN}2><animate onbegin={_RUN}3 attributeName=x dur=1s>",
    "double": f'" autofocus onfocus="{_RUN}4" onmouseover="{_RUN}5" x="',
    "single": f"' onfocus='{_RUN}6' onmouseover='{_RUN}7' x='",
    "link": f"javascript:{_RUN}8",
    "anchor": f'<a href="javascript:{_RUN}9">x</a><b>bold</b>',
    "template": f"${{{_RUN}10}} {{{{ 7*7 }}}} {{% raw %}} {{# #}}",
    "comment": f"<!--<script> --><script>{_RUN}'comment'</script>",
    "style": f"</style><style>*{{display:none}}</style><script>{_RUN}'style'</script>",
    "title": f"</title></textarea><script>{_RUN}'title'</script>",
    "frame": f'<iframe srcdoc="<script>parent.{ATTACKED}=1</script>"></iframe>',
    "base": '<base href="https://example.org/"><meta http-equiv="refresh" content="0;url=//x.org">',
    "lines": f"\u2028{_RUN}11\u2029\\u003cscript\\u003e\\",
    "formula": f'=HYPERLINK("javascript:{_RUN}12")',
    "prototype": "__proto__",
    "constructor": "constructor",
}
LONG = "model." + "very_long_name_of_a_cell." * 200  # 5 000 characters
RIGHT_TO_LEFT = "שלום עולם", "مرحبا بالعالم \u202eabc\u202c 123", "\u2067x < y\u2069"


def _pair(root: Path, **settings: object) -> Runs:
    a = record_training(root / "a", **settings)  # type: ignore[arg-type]
    return a, record_training(root / "b", faults=[FAULT], **settings)  # type: ignore[arg-type]


def one_step(root: Path) -> Runs:
    """One step each."""
    fault = Fault("layers.1.mlp", "reference_compute_log_prob")
    a = record_training(root / "a", steps=1)
    return a, record_training(root / "b", steps=1, faults=[fault])


def cut_off(root: Path) -> Runs:
    """B was killed in the middle of step 1 of 3: half a line, and nothing after it."""
    a, b = _pair(root, steps=3)
    for step in b.rglob("step2"):
        shutil.rmtree(step)
    for later in ("actor_update", "critic_update", "data/loss", "data/value_loss"):
        shutil.rmtree(b / later / "step1")
    journal = b / "reference_compute_log_prob" / "step1" / "rank0" / "records.jsonl"
    journal.write_bytes(journal.read_bytes()[:-70])
    content = json.loads((b / "run.json").read_text())
    content["state"] = "running"
    content["attempts"][-1]["last_completed_step"] = 0
    (b / "run.json").write_text(json.dumps(content))
    return a, b


def rank_missing(root: Path) -> Runs:
    """A has two ranks, B one of them."""
    a = record_training(root / "a", ranks=(0, 1))
    return a, record_training(root / "b", ranks=(0,), faults=[FAULT])


def key_data_only(root: Path) -> Runs:
    """No layers."""
    fault = Fault("advantages", step=1)
    a = record_training(root / "a", **NO_LAYERS)
    return a, record_training(root / "b", faults=[fault], **NO_LAYERS)


def layers_only(root: Path) -> Runs:
    """No key data."""
    return _pair(root, key_data_dump=False)


def not_finite(root: Path) -> Runs:
    """NaN and infinity in every record of both runs, and in the key data."""
    runs = []
    for side in "ab":
        run = HealthRun(root / side)
        for step in range(2):
            run.data("prompts", np.full((2, 3), np.nan, np.float32))
            with run.phase("actor_update"), run.cell("root", a_nan(), a_nan(), kind="Network"):
                other = an_inf() if side == "a" or not step else a_nan()
                run.call("head", an_inf(), other, parameters={"weight": an_inf()})
            run.data("loss", float("nan") if step else float("-inf"))
            run.end_step()
        runs.append(run.close())
    return tuple(runs)


def nothing(root: Path) -> Runs:
    """A run that ended before its first phase."""
    recording = Recording(root / "a")
    recording.end_step()
    return (recording.close(),)


def unlike(root: Path) -> Runs:
    """Two runs with no record in common."""
    runs = []
    for side, phase in (("a", "actor_update"), ("b", "critic_update")):
        run = HealthRun(root / side)
        with run.phase(phase):
            run.call(f"only_in_{side}")
        run.end_step()
        runs.append(run.close())
    return tuple(runs)


def named(root: Path, *names: str) -> Runs:
    """Two runs of which cells, classes, parameters, keys, arguments, stacks and settings are these.

    One cell of B computes something else, and so has a hostile text beside it.
    """
    runs = []
    for side in "ab":
        recording = Recording(root / side)
        recording.writer.save_configurations(
            lambda side=side: {name: {name: f"{name} {side}"} for name in names}
        )
        for step in range(2):
            recording.data("prompts", [f"{name} {step}" for name in names])
            with recording.phase("actor_compute_log_prob"):
                x = np.ones((2, 3), np.float32)
                for name in names:
                    different = np.float32(step and side == "b") / 8

                    def computed(x: np.ndarray, more: np.float32 = different, **_: object):
                        return np.tanh(x + more)

                    x = recording.call(
                        *(name, name.replace(".", "")[:60], computed, x),
                        parameters={name: np.ones(3, np.float32)},
                        frames=(f"File {name}, line 1, in {name}, {name}",),
                        **{name: np.ones(2, np.float32)},
                    )
            recording.data("responses", [f"{name} {side} {step}" for name in names])
            for name in names:
                if len(name) < 100:  # more does not fit a directory's name
                    recording.data(name.replace("/", "∕"), [1.0, name])
            recording.end_step()
        runs.append(recording.close())
    return tuple(runs)


def hostile(root: Path) -> Runs:
    """Every text of a run attacks the page, its own path and the name of a phase as well."""
    texts = [*HOSTILE.values()]
    runs = named(root / '"><script>window.attacked=1<∕script>', *texts)
    for run in runs:
        phase = '<img src=x onerror="window.attacked=1">'
        (run / "actor_compute_log_prob").rename(run / phase)
        content = json.loads((run / "run.json").read_text())
        content.pop("recorded", None)
        content["lost"] = {HOSTILE["image"]: 3, HOSTILE["end"]: 1}
        (run / "run.json").write_text(json.dumps(content))
    return runs


def long_names(root: Path) -> Runs:
    """Names of 5 000 characters, with points and without."""
    return named(root, LONG, "x" * 5000)


def right_to_left(root: Path) -> Runs:
    """Names and texts of other scripts, one of which turns the direction and does not end it."""
    return named(root, *RIGHT_TO_LEFT, "层.注意力", "e\u0301\u200d👩‍🔬")


def many_prompts(root: Path, count: int = 10_000) -> Runs:
    """One run with very many prompts, and the token ids of their responses, in one step."""
    recording = Recording(root / "a", **NO_LAYERS)
    recording.data("prompts", [f"prompt number {number}" for number in range(count)])
    recording.data("responses", np.arange(4 * count, dtype=np.int32).reshape(count, 4))
    recording.data("rewards", np.linspace(0, 1, count, dtype=np.float32))
    recording.end_step()
    return (recording.close(),)


def huge_values(root: Path) -> Runs:
    """Losses as far apart as numbers are, the smallest there are, and some that hardly differ."""
    recording = Recording(root / "a", **NO_LAYERS)
    for loss, kl, reward in ((1e308, 1e-300, 1e9), (-1e308, 5e-324, 1e9 + 1e-3), (1e308, 0.0, 1e9)):
        recording.data("loss", loss)
        recording.data("kl", kl)
        recording.data("reward", reward)
        recording.end_step()
    return (recording.close(),)


ODD: dict[str, Make] = {
    made.__name__: made
    for made in (
        *(one_step, cut_off, rank_missing, key_data_only, layers_only, not_finite, nothing),
        *(unlike, hostile, long_names, right_to_left, many_prompts, huge_values),
    )
}
