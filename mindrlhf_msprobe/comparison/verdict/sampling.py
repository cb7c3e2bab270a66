"""Whether the choice of a token is where two runs diverge: the logits agree, the tokens do not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mindrlhf_msprobe.common.rules import rule
from mindrlhf_msprobe.comparison.pairing.names import ROOT
from mindrlhf_msprobe.comparison.pairing.planner import Pair
from mindrlhf_msprobe.comparison.pairing.timeline import BEGIN, DATA, END
from mindrlhf_msprobe.comparison.verdict.first_difference import (
    FirstDifference,
    configs,
    event,
    key,
    of_entries,
    part,
    status,
)
from mindrlhf_msprobe.findings import Culprit, CulpritCode, Finding, Status
from mindrlhf_msprobe.phases import INPUT_KEYS, PROMPTS, key_data_home, phase_table
from mindrlhf_msprobe.storage.records import Entry

#: Arguments of whole numbers that are no tokens.
_NO_TOKENS = ("mask", "position", "length", "slot", "block", "table", "index", "cache", "segment")


_OTHER = status(Status.DIFFERENT, Status.SHAPE_MISMATCH)


@rule(_OTHER, event(BEGIN), part("input"))
def next_token(first: FirstDifference) -> Culprit | None:
    """Return the choice of a token, where the network gave the same and the next pass is given
    other tokens.

    The details: `phase`, `token` (the pass of whose output the token was chosen), `last` (whether
    it is the last pass), `prompt` (whether a new prompt may have been given instead).
    """
    entry = first.entry
    if entry is None or not entry.token or entry.direction != "forward":
        return None
    path = first.record.path
    are_numbers = first.record.leaf.is_integer and not any(w in path.lower() for w in _NO_TOKENS)
    if not (are_numbers and (path in ("0", "input_ids") or "ids" in path)):
        return None  # no token ids, by dtype and name
    of_pass = _of_pass(first, entry, entry.token)
    if not _outermost(first, first.pair) or any(p.event != first.event for p, _, _ in of_pass):
        return None  # a cell further on in the same pass: a head, say
    token = entry.token - 1
    code = _code(_outputs(first, entry, token))
    prompt = _new_prompt(first, entry)
    if code is None or prompt is None:
        return None
    return Culprit(code, {"phase": entry.phase, "token": token, "last": False, "prompt": prompt})


def _of_pass(
    first: FirstDifference, like: Entry, token: int
) -> Iterator[tuple[Pair, Finding | None, Entry]]:
    """Yield what lies before it in the pass `token`, in the same opening as an entry."""
    of_opening = of_entries(first.before, like.phase, opening=like.opening)
    return (one for one in of_opening if one[2].token == token)


@rule(_OTHER, event(DATA), key({*INPUT_KEYS} - {*PROMPTS}))
def last_token(first: FirstDifference) -> Culprit | None:
    """Return the choice of a token, where the responses differ after the last pass.

    The details are those of `next_token`.
    """
    home = key_data_home(first.event.name)
    if home is None or home.phase is None:
        return None
    entries = [entry for _, _, entry in of_entries(first.before, home.phase)]
    if not entries or not all_tokens(first, home.phase):
        return None
    opening = max(entry.opening for entry in entries)
    of_it = [entry for entry in entries if entry.opening == opening]
    last = max(entry.token or 0 for entry in of_it)
    code = _code(_outputs(first, of_it[-1], last))
    if code is None:
        return None
    return Culprit(code, {"phase": home.phase, "token": last, "last": True, "prompt": False})


def all_tokens(first: FirstDifference, phase: str | None) -> bool:
    """Return whether all passes of a phase that matter were recorded, in both runs.

    Either both token ranges are wider than what was generated, or the first difference is in
    responses of no more tokens than there are recorded passes: each pass makes one.
    """
    if phase is None:
        return False
    of_phase = of_entries(first.pairs, phase)
    last = max((entry.token or 0 for _, _, entry in of_phase), default=0)
    wanted = configs(first.runs)
    if any(config is None or config.token_range_start for config in wanted):
        return False
    if all(config is not None and last < config.token_range_end for config in wanted):
        return True
    # Responses are a table of whole numbers with a row for each row of the network's outputs.
    leaves = [record.leaf for record in (first.pair.a, first.pair.b) if record is not None]
    shapes = [leaf.shape or () for leaf in leaves]
    if not all(leaf.is_integer for leaf in leaves) or any(len(shape) != 2 for shape in shapes):
        return False
    rows = {
        (pair.record.leaf.shape or (0,))[0]
        for pair, _, _ in of_entries(first.pairs, phase, direction="forward", io="output")
        if pair.event.kind == END and first.parent_of(pair) is None
    }
    is_known = rows == {shape[0] for shape in shapes}
    return is_known and 0 < max(shape[1] for shape in shapes) <= last + 1


def counts_tokens(phase: str | None) -> bool:
    """Return whether each pass through the network is a token in a phase."""
    table = phase_table({})
    return phase in table and table[phase].counts_tokens


def _outermost(first: FirstDifference, pair: Pair) -> bool:
    """Return whether a pair's entry is known to be of a network itself, not of a cell inside it."""
    is_root = pair.entry is not None and pair.entry.cell == ROOT
    return first.parent_of(pair) is None and (is_root or not first.filtered)


def _outputs(first: FirstDifference, like: Entry, token: int) -> list[Finding]:
    """Return what was found of the outputs of the networks in one pass; [] if not all is known."""
    found = []
    for pair, finding, entry in _of_pass(first, like, token):
        if (entry.direction, pair.event.kind) != ("forward", END) or not _outermost(first, pair):
            continue
        if finding is not None:
            found.append(finding)
        elif not pair.record.leaf.opaque:
            return []
    return found


def _code(outputs: Sequence[Finding]) -> CulpritCode | None:
    """Return what outputs that agree say of the token chosen from them; None if too little."""
    if not any((f.a.dtype or "").startswith(("Float", "BFloat")) and f.a.shape for f in outputs):
        return None  # no logits among them
    if not all(finding.status.agrees for finding in outputs):
        return None
    exact = all(finding.status is Status.IDENTICAL for finding in outputs)
    return CulpritCode.SAMPLING if exact else CulpritCode.SAMPLING_OR_LOGITS


def _new_prompt(first: FirstDifference, entry: Entry) -> bool | None:
    """Return whether the pass may be given a new prompt instead; None if it certainly is."""
    shape, argument = first.record.leaf.shape or (), (first.record.io, first.record.path)
    # The shape of the same argument in the pass before.
    last = next(
        (
            other.record.leaf.shape or ()
            for other, _, of in _of_pass(first, entry, (entry.token or 0) - 1)
            if (other.event.kind, of.cell) == (BEGIN, entry.cell)
            and (other.record.io, other.record.path) == argument
        ),
        (),
    )
    if not shape or not last:
        return None
    if shape[-1] == 1 or shape[-1] == last[-1] + 1:
        return False
    if shape[-1] != last[-1]:
        return None
    prompts = [f.status.agrees for _, f in first.pairs if f is not None and f.key in PROMPTS]
    return not prompts if all(prompts) else None
