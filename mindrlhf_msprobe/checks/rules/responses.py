"""What was generated, and how it was rewarded.

Samples differ, are not empty, and end where they end; rewards and advantages are centred, and
different enough to learn from.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mindrlhf_msprobe.checks.check import Check
from mindrlhf_msprobe.checks.rule import Found, key, rule
from mindrlhf_msprobe.checks.rules.rows import floats_of, groups_of, texts_or_rows
from mindrlhf_msprobe.checks.views import Step, place_of
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.findings.health import Severity
from mindrlhf_msprobe.phases import LOSS_INPUTS, MASK, PROMPTS, RESPONSES
from mindrlhf_msprobe.sequences.batch import Sample, Sequences, Source
from mindrlhf_msprobe.sequences.losses import is_mask_name, masks_given_to_loss
from mindrlhf_msprobe.sequences.masks import JudgedMask, mask_of_responses, mask_of_tokens
from mindrlhf_msprobe.sequences.step_data import configured, generation_of, rows_of
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum

_GROUP_SIZE = ("num_generations", "num_return_sequences", "group_size", "n_samples_per_prompt")
_WHITE = 1e-4  # how far from 1 the standard deviation of whitened float32 numbers may be
_CENTRED = 2e-3  # how far from 0 the mean may be, as a share of the largest


@rule(
    "rl.advantages",
    needs=(key("advantages"),),
    causes=("check_rl.cause_centring", "check_rl.cause_groups"),
    follows=("non_finite.*",),
    live=True,
)
def advantages(step: Step, check: Check) -> Iterator[Found]:
    """Advantages are centred: per prompt in GRPO, over the batch where they are whitened.

    GRPO's are one number a sample, rewards minus the mean of their group (Shao et al. 2024,
    "DeepSeekMath", section 4.1.2); a trainer may centre them over the batch instead. Numbers a
    token whose standard deviation is 1 were whitened, so that their mean is 0.
    """
    for datum in step.key_data("advantages"):
        values = floats_of(datum)
        mask = None if values is None or values.ndim < 2 else step.mask_of(datum, values)
        if values is not None and mask is not None:
            values = np.where(mask, values, 0.0)
        if values is None or not np.isfinite(values).all():
            continue
        samples = _one_a_sample(values)
        counted = values if mask is None else values[mask]
        if samples is not None:
            groups = _groups(step, datum.rank, len(samples), check)
            kinds, unknown = [samples[group] for group in groups], "groups_unknown"
        else:
            whole = _whitened(values) if mask is None else _white(counted)
            kinds, unknown = [] if whole is None else [whole], "advantages_unknown"
        if not kinds:
            check.not_checked(message(f"check_rl.{unknown}"))
            continue
        check.checked()
        off = _off_centre(kinds)
        if off is not None:
            yield check.finding(
                message("check_rl.advantages", mean=off, grouped=samples is not None),
                datum,
                shown={"mean": float(counted.mean()), "std": float(counted.std())},
                same="centred",
            )


def _one_a_sample(values: np.ndarray) -> np.ndarray | None:
    """Return advantages as one number a sample; None where a sample has several."""
    if values.ndim == 1 or (values.ndim == 2 and values.shape[1] == 1):
        return values.reshape(-1)
    if values.ndim != 2:
        return None
    largest = values[np.arange(len(values)), np.abs(values).argmax(axis=1)]
    same = (values == 0) | (values == largest[:, None])  # the mask makes zeros
    return largest if same.all() else None


def _groups(step: Step, rank: int, count: int, check: Check) -> list[list[int]]:
    """Return the positions of the samples of each prompt, where every prompt has equally many."""
    for datum in step.key_data("prompts", "prompt", rank=rank):
        samples = texts_or_rows(datum)
        if len(samples) == count:
            found = [*groups_of(samples).values()]
            if len({len(group) for group in found}) == 1 and len(found[0]) > 1:
                return found
    sizes = [n for n in configured(check.run, *_GROUP_SIZE) if isinstance(n, int) and n > 1]
    if count in sizes:
        return [[*range(count)]]
    return []


def _off_centre(groups: list[np.ndarray]) -> float | None:
    """Return the mean that is farthest from 0, if neither the groups nor the whole are centred."""
    largest = max(float(np.abs(group).max()) for group in groups)
    means = [float(group.mean()) for group in groups]
    allowed = _CENTRED * largest + 1e-6
    if all(abs(mean) <= allowed for mean in means):
        return None
    if abs(float(np.concatenate(groups).mean())) <= allowed:
        return None
    return max(means, key=abs)


def _whitened(values: np.ndarray) -> np.ndarray | None:
    """Return the numbers that were scaled to a standard deviation of 1; None if none were.

    Padding holds one number at the end of rows: 0, or what was added to all of them.
    """
    ends = values[:, -1] if values.ndim == 2 else values[-1:]
    repeated = [fill for fill in np.unique(ends) if (ends == fill).sum() > 1]
    kinds = [values.reshape(-1), *(values[values != fill] for fill in {0.0, *repeated})]
    return next((kind for kind in map(_white, kinds) if kind is not None), None)


def _white(values: np.ndarray) -> np.ndarray | None:
    """Return numbers whose standard deviation is 1; None of others, and of few."""
    is_white = values.size >= 8 and any(abs(values.std(ddof=d) - 1) < _WHITE for d in (0, 1))
    return values if is_white else None


@rule("rl.equal_rewards", needs=(key("rewards", "reward"),), severity=Severity.NOTE, live=True)
def equal_rewards(step: Step, check: Check) -> Iterator[Found]:
    """A group whose rewards are all equal gives no signal."""
    for rank in step.ranks:
        for datum in step.key_data("rewards", "reward", rank=rank)[:1]:
            values = floats_of(datum)
            if values is None or values.ndim != 1 or len(values) < 2:
                continue
            groups = _groups(step, rank, len(values), check) or [[*range(len(values))]]
            equal = sum(bool((values[group] == values[group[0]]).all()) for group in groups)
            if equal:
                yield check.finding(
                    message("check_rl.equal_rewards", equal=equal, count=len(groups)),
                    datum,
                    shown={"rewards": values[:16].tolist()},
                    same=("equal", rank),
                )


_SHOWN = 120  # characters of a sample


@rule(
    "rl.identical_completions",
    needs=(key(*RESPONSES),),
    causes=("check_rl.cause_greedy", "check_rl.cause_same_seed"),
    follows=("non_finite.*",),
    live=True,
)
def identical_completions(step: Step, check: Check) -> Iterator[Found]:
    """Samples differ: from each other, or at least those of one prompt.

    All samples of one prompt alone may be the same where nothing is sampled, or each with one seed.
    """
    settings = generation_of(check.run)
    greedy = settings.get("do_sample") is False
    seeded = greedy or settings.get("seed") is not None or not settings
    for rank in step.ranks:
        prompts = step.key_data(*PROMPTS, rank=rank)
        for number, datum in enumerate(step.key_data(*RESPONSES, rank=rank)):
            samples = texts_or_rows(datum)
            of = texts_or_rows(prompts[number]) if number < len(prompts) else []
            groups = groups_of(of) if len(of) == len(samples) else {}
            same = len(set(samples)) == 1
            several = [group for group in groups.values() if len(group) > 1]
            within = all(len({samples[i] for i in group}) == 1 for group in several)
            if len(samples) < 2 or not (same or (not greedy and within and len(several) > 1)):
                continue
            few = (len(groups) == 1 and seeded) or (greedy and len(groups) < 4)
            yield check.finding(
                message("check_rl.identical", count=len(samples), all=same),
                datum,
                severity=Severity.NOTE if few else None,
                shown={"sample": str(samples[0])[:_SHOWN]},
                same="identical",
            )


@rule("rl.empty_responses", needs=(key(*RESPONSES),), follows=("non_finite.*",), live=True)
def empty_responses(step: Step, check: Check) -> Iterator[Found]:
    """Responses hold something; that some are empty is a note."""
    for sequences in map(step.sequences, step.ranks):
        for datum, samples in zip(sequences.responses, sequences.saves):
            # Which of them hold something but what ends them. Where nothing says which ids are
            # padding, all may be tokens: a token may be sampled repeatedly.
            filled = [bool(str(text).strip()) for text in texts_or_rows(datum)]
            if samples is not None:
                tokens = (of.ids if of.source is Source.NONE else of.response for of in samples)
                filled = [not sequences.eos.issuperset(of.tolist()) for of in tokens]
            empty = [n for n, one in enumerate(filled) if not one]
            if empty:
                yield check.finding(
                    message("check_rl.empty", empty=len(empty), count=len(filled)),
                    datum,
                    severity=None if len(empty) == len(filled) > 1 else Severity.NOTE,
                    shown={"samples": empty[:16]},
                    same=("empty", len(empty) == len(filled)),
                )


def _token_rows(step: Step, check: Check) -> Iterator[tuple[KeyDatum, Sequences, list[Sample]]]:
    """Yield the responses that were saved as token ids, which are checked then."""
    for sequences in map(step.sequences, step.ranks):
        for datum, samples in zip(sequences.responses, sequences.saves):
            if samples:
                check.checked()
                yield datum, sequences, samples


@rule("rl.length_limit", needs=(key(*RESPONSES),), severity=Severity.NOTE, live=True)
def length_limit(step: Step, check: Check) -> Iterator[Found]:
    """Responses that end because nothing more may be written were cut."""
    settings = generation_of(check.run)
    limit = settings.get("max_new_tokens") or settings.get("max_length")
    for datum, sequences, samples in _token_rows(step, check):
        if not sequences.eos:
            check.not_checked(message("check_rl.no_eos"))
            continue
        most = limit if isinstance(limit, int) else max(len(sample.ids) for sample in samples)
        cut = sum(
            sample.padding_from >= most and not sequences.eos & {*sample.response.tolist()}
            for sample in samples
        )
        if cut:
            yield check.finding(
                message("check_rl.cut", cut=cut, count=len(samples), limit=most),
                datum,
                same=("cut", datum.rank),
            )


@rule(
    "rl.pad_inside",
    needs=(key(*RESPONSES),),
    thresholds={"share": 0.25},
    causes=("check_rl.cause_eos_ignored",),
    follows=("non_finite.*",),
    live=True,
)
def pad_inside(step: Step, check: Check) -> Iterator[Found]:
    """Behind the token that ends a response there is only padding.

    Unless it ends a turn, which the mask shows: the question of the next one is not trained. An id
    of padding before the end was sampled, which is a remark.
    """
    for datum, sequences, samples in _token_rows(step, check):
        if sequences.pad is None and not sequences.eos:
            check.not_checked(message("check_rl.no_eos"))
            continue
        bad = [n for n, sample in enumerate(samples) if _goes_on(sample, sequences)]
        if bad:
            masked = all(_is_masked_behind(samples[n], sequences) for n in bad)
            few = masked or len(bad) <= check.threshold("share") * len(samples)
            yield check.finding(
                message("check_rl.pad_inside", bad=len(bad), count=len(samples)),
                datum,
                severity=Severity.NOTE if few else None,
                shown={"sample": bad[0], "tokens": samples[bad[0]].ids[:64].tolist()},
                same=("pad", few),
            )
        sampled = [n for n, sample in enumerate(samples) if _has_sampled_pad(sample, sequences)]
        if sampled:
            counts = {"pad": sequences.pad, "bad": len(sampled), "count": len(samples)}
            yield check.finding(
                message("check_rl.pad_sampled", **counts),
                datum,
                severity=Severity.NOTE,
                shown={"sample": sampled[0], "tokens": samples[sampled[0]].ids[:64].tolist()},
                causes=(),
                same=("pad_sampled", datum.rank),
            )


def _goes_on(sample: Sample, sequences: Sequences) -> bool:
    """Return whether tokens follow the one that ends a response, and are no further turn."""
    ends = [n for n, token in enumerate(sample.response.tolist()) if token in sequences.eos]
    if not ends:
        return False
    fills = {sequences.pad, *sequences.eos}
    behind = sample.ids[ends[0] + 1 : sample.size]
    if all(token in fills for token in behind.tolist()):
        return False
    trained = sample.trained
    if not sequences.has_turns or trained is None:
        return True
    # Whether the token right behind one that ends a turn is trained, too.
    return any(trained[n + 1] for n in ends if n + 1 < sample.size)


def _is_masked_behind(sample: Sample, sequences: Sequences) -> bool:
    """Return whether the mask leaves all out that follows the token that ends a response."""
    first = next(n for n, token in enumerate(sample.response.tolist()) if token in sequences.eos)
    return sample.trained is not None and not sample.trained[first + 1 :].any()


def _has_sampled_pad(sample: Sample, sequences: Sequences) -> bool:
    """Return whether an id of padding stands before tokens; what begins a row is its left."""
    tokens = sample.response
    real = np.flatnonzero(tokens != sequences.pad)
    if not len(real) or sequences.pad in sequences.eos:
        return False
    return bool((tokens[real[0] :] == sequences.pad).any())


@rule("rl.repeated_prompts", needs=(key(*PROMPTS),), severity=Severity.NOTE, live=True)
def repeated_prompts(step: Step, check: Check) -> Iterator[Found]:
    """Prompts that were all there in the step before, or more often than others of this step."""
    for rank in step.ranks:
        for datum in step.key_data(*PROMPTS, rank=rank)[:1]:
            groups = groups_of(texts_or_rows(datum))
            if not groups:
                continue
            before = check.memory.get(str(rank))
            check.memory[str(rank)] = {*groups}
            sizes = {len(group) for group in groups.values()}
            if before is not None and before == {*groups}:
                said = message("check_rl.same_prompts", count=len(groups))
            elif len(sizes) > 1:
                repeated = sum(len(group) > min(sizes) for group in groups.values())
                said = message("check_rl.repeated_prompts", repeated=repeated, count=len(groups))
            else:
                continue
            yield check.finding(said, place_of(datum), same=(said.code, rank))


@rule(
    "rl.mask",
    needs=(key(LOSS_INPUTS, *MASK),),
    severity=Severity.ERROR,
    causes=("check_rl.cause_shift", "check_rl.cause_lengths"),
    live=True,
)
def mask(step: Step, check: Check) -> Iterator[Found]:
    """The mask of the loss selects tokens of responses, and no padding.

    It may leave out the token that ends a response, and tokens inside it that were not sampled:
    those of the user's and of tools' turns. A mask one shorter than the tokens is of the next token
    each; as long as prompts and responses, it may be either.
    """
    for rank in step.ranks:
        sequences = step.sequences(rank)
        masks = [*_masks(step, rank, sequences)]
        trained = {path for _, path, array, _ in masks if array.any()}
        for datum, path, array, found in masks:
            at = place_of(datum, path)
            if not array.any():
                # Of a few rows all samples may be filtered out, or empty.
                if path in trained or len(sequences.samples) == 1:
                    continue
                said = message("check_rl.mask_empty")
            else:
                if found is None or not found.is_whole:
                    no_pad = sequences.samples and sequences.pad is None
                    check.not_checked(message(f"check_rl.{'no_pad' if no_pad else 'mask_unknown'}"))
                if found is None or not found.is_known:
                    continue
                check.checked()
                if found.row < 0:
                    continue
                selected = str([*found.selected[:64]])
                said = message("check_rl.mask_wrong", row=found.row, tokens=selected)
            shown = {"selected": int(array.sum())}
            yield check.finding(said, at, shown=shown, same=said.code)


def _masks(
    step: Step, rank: int, sequences: Sequences
) -> Iterator[tuple[KeyDatum, str, np.ndarray, JudgedMask | None]]:
    """Yield the masks of responses, as bools, and what is found of each; None: nothing."""
    for datum in step.key_data(LOSS_INPUTS, rank=rank):
        for name, mask, tokens in masks_given_to_loss(datum):
            # Over prompts and responses; with one column more of tokens, of the next one each.
            found = None
            if tokens is not None and sequences.samples:
                found = mask_of_tokens(mask, tokens, sequences)
            yield datum, name, mask, found
    for name in step.keys(rank):
        if is_mask_name(name):
            saves = step.key_data(name, rank=rank)
            for number, datum in enumerate(saves):
                rows = rows_of(datum, "biuf")
                if rows is not None and any(row.size for row in rows):
                    selects = np.concatenate(rows) != 0
                    yield datum, "", selects, _saved_mask(step, datum, number, len(saves), rows)


def _saved_mask(
    step: Step, datum: KeyDatum, number: int, count: int, rows: list[np.ndarray]
) -> JudgedMask | None:
    """Return what is found of a mask that was saved beside the responses; None: nothing.

    Args:
        number: of the save, of so many.
        rows: of the mask.
    """
    sequences = step.sequences(datum.rank)
    if count != len(sequences.saves) or not (samples := sequences.saves[number]):
        return None
    mask = [row != 0 for row in rows]
    if [*map(len, mask)] == [len(sample.ids) for sample in samples]:
        return mask_of_responses(mask, samples, sequences)
    whole = None if datum.key == "mask" else sequences.ids_under(mask, number)
    return None if whole is None else mask_of_tokens(np.stack(mask), whole, sequences)
