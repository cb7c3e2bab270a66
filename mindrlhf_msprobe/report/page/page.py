"""report.html: everything that is shown of a comparison or a run, in one file."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mindrlhf_msprobe import __version__
from mindrlhf_msprobe.common.language import LANGUAGES, language
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.errors import MsprobeError, UsageError
from mindrlhf_msprobe.findings import Comparison, Spread
from mindrlhf_msprobe.findings.health import CheckFinding, CheckResult
from mindrlhf_msprobe.findings.mismatch import Mismatches
from mindrlhf_msprobe.findings.proof import Proof
from mindrlhf_msprobe.findings.words import Status
from mindrlhf_msprobe.phases import PROMPTS, RESPONSES, phase_order, usual_place
from mindrlhf_msprobe.report.answer import Fact
from mindrlhf_msprobe.report.checks import findings_shown, not_checked_shown
from mindrlhf_msprobe.report.checks import head_of as check_head
from mindrlhf_msprobe.report.comparison import head_of as comparison_head
from mindrlhf_msprobe.report.messages import text_of, texts_in, texts_of
from mindrlhf_msprobe.report.mismatch import head_of as mismatch_head
from mindrlhf_msprobe.report.page import overview, samples
from mindrlhf_msprobe.report.page.data import Blocks, in_both, known, said, spoken
from mindrlhf_msprobe.report.page.details import Details, Elements
from mindrlhf_msprobe.report.page.overview import Measure, Overview, Place, Seconds
from mindrlhf_msprobe.report.page.rollout_gap import not_compared_of, states_of, write_mismatches
from mindrlhf_msprobe.report.preflight import preflight_shown
from mindrlhf_msprobe.report.proof import proof_shown
from mindrlhf_msprobe.storage.arrays.atomic import number_to_json, write_atomic
from mindrlhf_msprobe.storage.place import StepPlace
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.reading.series import Series
from mindrlhf_msprobe.trends.reading import Choice, read_trends

SCHEMA = 1
_MOST_DETAILS = 6_000_000  # characters of all places in full
_MOST_SAMPLES = 2_000_000
_FEW_RECORDS = 20_000  # of all places: so few are all shown in full
_MARK = b'<meta name="generator" content="mindrlhf_msprobe">'
_BEGIN = 1024  # bytes of a page in which it stands
_AROUND = 1  # steps before and after what is of interest
_CSP = (
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True)
class Shown:
    """What a page shows.

    Attributes:
        runs: A, or A and B.
        comparison: of both; None of one run.
        checks: of the runs, in their order; () where they were not checked.
        decode: token ids → text; None shows the ids.
        mismatches: training against inference of each run, or why there is nothing to show of it;
            () shows no such view. Without checks and a comparison, the page is one of this.
        proof: what experiments proved of the difference of both.
    """

    runs: tuple[Run, ...]
    comparison: Comparison | None = None
    checks: tuple[CheckResult, ...] = ()
    decode: samples.Decode | None = None
    mismatches: tuple[Mismatches | Message, ...] = ()
    proof: Proof | None = None

    @property
    def kind(self) -> str:
        """What the page is of: `pair`, `run` or `mismatch`."""
        if self.comparison is not None:
            return "pair"
        return "mismatch" if self.mismatches and not self.checks else "run"

    @property
    def findings(self) -> list[CheckFinding]:
        """The findings of all checks."""
        return [one for check in self.checks for one in check.all_findings]


def write_page(shown: Shown, path: Path) -> int:
    """Write a page, which opens in the language spoken; return its size in bytes.

    Raises:
        UsageError: jinja2 or bokeh is not installed.
        OSError: the file cannot be written.
    """
    require_libraries()
    blocks = Blocks()
    return write_atomic(path, [_rendered(_head(shown, blocks), blocks)])


def is_page(path: Path) -> bool:
    """Return whether a file is a page that was written before."""
    try:
        with path.open("rb") as file:
            return _MARK in file.read(_BEGIN)
    except OSError:
        return False


def require_libraries() -> None:
    """Refuse to begin without what writes a page.

    Raises:
        UsageError: jinja2 or bokeh is not installed.
    """
    for name in ("jinja2", "bokeh"):
        if find_spec(name) is None:
            raise UsageError.saying("report.not_installed", why=name)


def _rendered(head: dict[str, Any], blocks: Blocks) -> bytes:
    import jinja2

    static = files("mindrlhf_msprobe.report.page") / "static"
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string((static / "page.html").read_text("utf-8"))
    scripts = sorted(one.name for one in static.iterdir() if one.name.endswith(".js"))
    blocks.json("head", head)
    blocks.text("library", _library())
    nonce = secrets.token_urlsafe(16)
    shown = {
        **{"title": head["title"], "lang": head["lang"], "nonce": nonce},
        "csp": _CSP.format(nonce=nonce),
        "style": (static / "style.css").read_text("utf-8"),
        "scripts": [(static / name).read_text("utf-8") for name in scripts],
        "blocks": [*blocks],
        "needs_script": spoken("report.needs_script"),
    }
    page, size = b"", -1
    while len(page) != size:  # the page says how many bytes it has, which are bytes of it
        size = len(page)
        loading = spoken("report.loading", size=size)
        page = template.render(loading=loading, **shown).encode("utf-8", "replace")
    return page


def _library() -> str:
    """Return bokeh's script; the package itself takes long to import, and is not needed."""
    spec = find_spec("bokeh")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    (place, *_) = spec.submodule_search_locations
    return (Path(place) / "server" / "static" / "js" / "bokeh.min.js").read_text("utf-8")


def _head(shown: Shown, blocks: Blocks) -> dict[str, Any]:
    """Add all blocks; return the one that leads to them."""
    runs, comparison = shown.runs, shown.comparison
    interest = _interest(shown)
    if comparison is None:
        seen = overview.of_run(runs[0], shown.checks[0] if shown.checks else None, interest)
    else:
        seen = overview.of_pair(comparison, runs, interest)
    overview.count_findings(seen, shown.findings)
    places = [*seen.places]
    phases, keys = _names(seen, "phase", phase_order), _names(seen, "key", usual_place)
    steps, ranks = sorted({p[0] for p in places}), sorted({p[1] for p in places})
    heat = seen.heat.write(blocks, places, phases)
    blocks.json("strip", overview.strip_of(seen, phases, keys, _seconds(runs, places)))
    left_out: list[Message] = []
    if seen.heat.left_out:
        left_out.append(message("report.steps_left_out"))
    in_full = _details(shown, seen, interest, blocks, left_out)
    _samples(shown, places, interest, blocks, left_out)
    problems = _findings_and_course(shown, blocks, left_out)
    mismatches = [
        write_mismatches(blocks, side, found, run, shown.decode)
        for side, run, found in zip("AB", shown.runs, shown.mismatches)
    ]
    if comparison is not None and comparison.verdict.first_divergence is not None:
        blocks.json("path", _path(comparison, keys))
    if comparison is not None:
        problems = [*comparison.incomplete, *problems]
    elif shown.checks:
        problems = [*shown.checks[0].problems, *problems]
    # Two phases or ranks of one run are both of it.
    sides = runs * 2 if comparison is not None and len(runs) == 1 else runs
    cells = overview.cells_of(seen, comparison, shown.findings)
    if shown.kind == "mismatch":
        states = states_of(shown.mismatches[0])
        cells = {at: (states.get(at, "plain"), *cell[1:]) for at, cell in cells.items()}
    return {
        **{"schema": SCHEMA, "tool": f"mindrlhf_msprobe {__version__}"},
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **{"kind": shown.kind, "lang": language()},
        "title": " · ".join(run.path.name for run in runs),
        "runs": [
            {
                **{"side": side, "path": str(run.path)},
                "facts": [
                    [spoken(f"report.fact_{name}"), value]
                    for name, value in (
                        ("state", run.state),
                        ("steps", len(run.steps)),
                        ("ranks", len(run.ranks)),
                    )
                ],
            }
            for side, run in zip("AB", sides)
        ],
        "words": {one: texts_in(one, "page") for one in LANGUAGES},
        **in_both(partial(_top, shown)),
        "problems": [*map(said, problems)],
        "left_out": [*map(said, left_out)],
        "places": {
            **{"steps": steps, "ranks": ranks},
            "cells": [
                [steps.index(place[0]), ranks.index(place[1]), *cells[place], place in in_full]
                for place in places
            ],
        },
        **{"phases": phases, "keys": keys, "heat": heat, "mismatches": mismatches},
        "measures": [_measure(one, comparison, seen) for one in seen.heat.measures],
        "blocks": blocks.names(),
    }


def _findings_and_course(shown: Shown, blocks: Blocks, left_out: list[Message]) -> list[Message]:
    """Add what checks found, and the curves; return why a run has none of these."""
    findings = in_both(partial(findings_shown, shown.checks))
    if shown.checks:
        blocks.json("findings", findings["shown"])
    groups: dict[str, list[dict[str, Any]]] = {}
    problems: list[Message] = []
    too_many, most = 0, _MOST_SERIES // max(1, len(shown.runs))
    for side, run in zip("AB", shown.runs):
        try:
            series = [one for one in read_trends(run, Choice(spread=_SPREAD)).series if len(one)]
        except MsprobeError as error:
            problems.append(error.said)
            continue
        too_many += max(0, len(series) - most)
        for one in series[:most]:
            groups.setdefault(_group_of(one), []).append(_curve(side, one))
    order = (name for name in (*(name for name, _ in _GROUPS), _OTHER) if name in groups)
    titled = (
        {"id": name, "title": spoken(f"report.group_{name}"), "series": groups[name]}
        for name in order
    )
    blocks.json("course", {"groups": [*titled]})
    left_out += _counted(findings["left_out"], "report.too_many", curves=False)
    left_out += _counted(too_many, "report.too_many", curves=True)
    return problems


def _measure(measure: Measure, comparison: Comparison | None, seen: Overview) -> dict[str, Any]:
    name = measure.name
    if comparison is None and name == "norm":
        name = "norm_of_run"
    elif comparison is not None and not seen.by_elements and name in ("distance", "growth"):
        name = f"{name}_of_norms"
    return {
        **{"name": measure.name, "scale": measure.scale},
        "label": spoken(f"report.measure_{name}"),
        "explanation": spoken(f"report.explain_{name}"),
    }


def _seconds(runs: Sequence[Run], places: Sequence[Place]) -> Seconds:
    """Return how long phases took, by place and phase, of each run."""
    found: Seconds = {}
    for number, run in enumerate(runs):
        for place in places:
            times = run.timeline(*place)
            for phase, (_, seconds) in (times.of_phases() if times else {}).items():
                of_runs = found.setdefault((place, phase), [None, None])
                of_runs[number] = round(seconds, 6)
    return found


def _names(seen: Overview, what: str, order: Callable[[str], float]) -> list[str]:
    names = {name for place in seen.places.values() for kind, name in place.items if kind == what}
    return sorted(names, key=lambda name: (order(name), name))


def _top(shown: Shown) -> dict[str, Any]:
    comparison = shown.comparison
    mismatches = [found for found in shown.mismatches if isinstance(found, Mismatches)]
    head = None
    if comparison is not None:
        head = comparison_head(comparison)
    elif shown.checks:
        head = check_head(shown.checks[0])
    elif mismatches:
        head = mismatch_head(mismatches[0])
    if head is not None and shown.kind != "mismatch":
        of_gaps = map(mismatch_head, mismatches)
        gaps = [Fact("mismatch", one.headline, link=one.place) for one in of_gaps]
        head = replace(head, facts=[*head.facts, *gaps])
    nothing: dict[str, Any] = {"rows": [], "weights": [], "unknown": []}
    proof = None
    if shown.proof is not None and comparison is not None:
        counts = comparison.verdict.counts.items()
        different = sum(number for status, number in counts if not Status(status).agrees)
        proof = proof_shown(shown.proof, different)
    return {
        "answer": None if head is None else head.to_json(),
        "preflight": nothing if comparison is None else preflight_shown(comparison),
        # What was not compared, and why.
        "coverage": [
            {
                "text": gap.reason if gap.message is None else text_of(gap.message),
                **{"only_in": gap.only_in, "records": gap.records},
            }
            for gap in (() if comparison is None else comparison.verdict.coverage)
        ],
        "not_checked": not_compared_of(shown.mismatches),
        "unchecked": not_checked_shown(shown.checks),
        "notes": [] if comparison is None else comparison.notes,
        "proof": proof,
    }


def _interest(shown: Shown) -> list[Place]:
    """Return the places that are shown in full, the most interesting first."""
    found: dict[Place, None] = {}
    there = {place for run in shown.runs for place in run.places}
    ranks_of: dict[int, list[int]] = {}
    for one_step, one_rank in sorted(there):
        ranks_of.setdefault(one_step, []).append(one_rank)
    steps = [*ranks_of]
    numbers = {step: number for number, step in enumerate(steps)}

    def take(step: int | None, rank: int | None, around: int = 0) -> None:
        """Take a place, or all ranks of a step; then those around it."""
        if step is None or step not in ranks_of:
            return
        at = numbers[step]
        for near in (step, *steps[max(0, at - around) : at + around + 1]):
            for one in ranks_of[near] if rank is None else [rank]:
                if (near, one) in there:
                    found[near, one] = None

    if shown.comparison is not None:
        verdict = shown.comparison.verdict
        if verdict.first_divergence is not None:
            take(verdict.first_divergence.step, verdict.first_divergence.rank, _AROUND)
        for one in verdict.parted:
            take(one.step, one.rank)
        take(verdict.suspicious.step, verdict.suspicious.rank)
        if verdict.first_divergence is not None:
            take(verdict.first_divergence.step, None)
    for mismatch in shown.mismatches:
        if isinstance(mismatch, Mismatches) and mismatch.first is not None:
            take(mismatch.first.step, mismatch.first.rank, _AROUND)
    for finding in shown.findings:
        take(finding.place.step, finding.place.rank, _AROUND)
        for evidence in finding.evidence[:4]:
            take(evidence.place.step, evidence.place.rank)
    for cause in () if shown.proof is None else shown.proof.causes:
        take(cause.where.step, cause.where.rank)
    for step in (*steps[:1], *steps[-1:]):
        take(step, None)
    return [*found]


def _details(
    shown: Shown, seen: Overview, interest: Sequence[Place], blocks: Blocks, left_out: list[Message]
) -> set[Place]:
    """Add the places in full; return which they are."""
    records = sum(place.compared for place in seen.places.values())
    wanted = dict.fromkeys(place for place in interest if place in seen.places)
    if records <= _FEW_RECORDS:
        wanted.update(dict.fromkeys(seen.places))
    elements = Elements()
    details = Details(shown.runs, elements)
    room, written = _MOST_DETAILS, set()
    comparison = shown.comparison
    by_place = () if comparison is None else comparison.by_place()
    findings = {at: tuple(found) for at, found in by_place if at in wanted}
    for place in wanted:
        if room <= 0:
            break
        before = blocks.size
        pairs = None if comparison is None else findings.get(place, ())
        blocks.json(f"place-{place[0]}-{place[1]}", details.of_place(place, pairs))
        room -= blocks.size - before
        written.add(place)
    left_out += _counted(len(seen.places) - len(written), "report.places_left_out")
    left_out += _counted(elements.left_out, "report.tensors_left_out")
    return written


def _samples(
    shown: Shown,
    places: Sequence[Place],
    interest: Sequence[Place],
    blocks: Blocks,
    left_out: list[Message],
) -> None:
    """Add prompts and responses, those of the most interesting places first."""
    room, lacking = _MOST_SAMPLES, 0
    for place in dict.fromkeys([*interest, *places]):
        keys = {key for run in shown.runs for key in run.keys_at(StepPlace(*place))}
        if keys.isdisjoint((*PROMPTS, *RESPONSES)):
            continue
        if room <= 0:
            lacking += 1
            continue
        before = blocks.size
        found = samples.samples_of(shown.runs, place, shown.decode)
        if found is not None:
            blocks.json(f"text-{place[0]}-{place[1]}", found)
        room -= blocks.size - before
    left_out += _counted(lacking, "report.texts_left_out")


def _path(comparison: Comparison, keys: Sequence[str]) -> list[dict[str, Any]]:
    """Return how the difference went on from where it arose, in causal order."""
    first = comparison.verdict.first_divergence
    assert first is not None
    origin = first.phase if first.key is None else first.key
    entry = "" if first.entry is None else f".{first.entry}."
    found = []
    for spread in comparison.verdict.spread:
        what = "key" if spread.place in keys else "phase"
        link = {"view": "where", "step": first.step, "rank": first.rank, what: spread.place}
        node = _node(spread, link, is_first=spread.place == origin)
        node["what"] = what
        node["layers"] = [
            _node(
                layer,
                {**link, "cell": layer.place},
                is_first=spread.place == origin and f".{layer.place}." in entry,
            )
            for layer in spread.layers
        ]
        found.append(node)
    return found


def _node(spread: Spread, link: dict[str, Any], *, is_first: bool) -> dict[str, Any]:
    held = spread.non_finite
    return {
        "name": spread.place,
        "tone": "first" if is_first else "reached",
        **{"different": spread.different, "compared": spread.compared},
        **{"factor": number_to_json(spread.factor), "link": link},
        **({"zero": spoken("console.zero", zero=spread.zero)} if spread.zero else {}),
        **({"non_finite": spoken("console.not_finite", **vars(held))} if held else {}),
    }


def _counted(number: int, code: str, **params: Any) -> list[Message]:
    return [message(code, count=number, **params)] if number > 0 else []


_MOST_SERIES = 400  # of all runs; each has its share, so that both have the same
_MOST_POINTS = 2000  # of a series; of longer ones every n-th is shown
#: What people look at first, in this order; a name that holds one of these words belongs to it.
_GROUPS = (
    ("loss", ("loss",)),
    ("rollout", ("rollout_corr/", "training/rollout")),
    ("kl", ("kl",)),
    ("reward", ("reward", "score")),
    ("advantages", ("advantage", "return", "value")),
    ("log_probs", ("log_prob", "logprob", "logps", "entropy")),
    ("ratio", ("ratio", "clip")),
    ("lengths", ("length",)),
    ("gradients", ("grad",)),
    ("weights", ("update_to_weight", "adam", "weight")),
)
_OTHER = "other"
#: Of these the spread is shown, too: the smallest and the largest.
_SPREAD = ("rewards", "reward", "advantages")


def _group_of(series: Series) -> str:
    """Return the group that a curve belongs to, by its name."""
    lowered = series.name.lower().partition("[")[0]  # without the layer, called anything
    lowered = lowered.removeprefix("loss_inputs.")  # what the loss is given is no loss
    groups = (group for group, words in _GROUPS if any(word in lowered for word in words))
    return next(groups, _OTHER)


def _curve(side: str, series: Series) -> dict[str, Any]:
    stride = -(-len(series) // _MOST_POINTS)
    statistic = "" if series.statistic == "mean" else series.statistic
    return {
        **{"side": side, "rank": series.rank, "label": series.name},
        **known(statistic=statistic or None, phase=series.phase),
        "steps": series.steps[::stride].tolist(),
        "micro_steps": series.micro_steps[::stride].tolist(),
        "values": [*map(number_to_json, series.values[::stride].tolist())],
        **known(every=stride if stride > 1 else None),
        **known(note=in_both(lambda: texts_of(series.notes)) or None),
    }
