"""Which parameter of A is which of B, and which of them are an optimizer's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Messages, message
from mindrlhf_msprobe.common.text.printable import shortened
from mindrlhf_msprobe.comparison.pairing.names import NameRule, Names, match_names, renamed
from mindrlhf_msprobe.errors import UsageError

#: What optimizers of MindSpore put in front of a parameter's name; `linear.`, which FTRL does, may
#: be a cell as well, and what is no optimizer's is never left out.
_STATE = re.compile(
    r"(?:optimizer|adam_[mv]|moments?[12]?|accum|accumulation|exp_avg|exp_avg_sq|max_exp_avg_sq"
    r"|mean_squares?|mean_gradients?)\.(?=.)"
)
#: What a checkpoint holds of training beside parameters.
_OF_TRAINING = re.compile(
    r"(?:learning_rate|lr|global_step|beta[12]|beta[12]_power|epoch_num|step_num|loss_scale|scale_sense"
    r"|current_iterator_step|last_overflow_iterator_step|momentum|weight_decay|state_step)(?:_\d+)?"
)


def split_state(name: str) -> tuple[str, str]:
    """Return what an optimizer put in front of a parameter's name ("" for none), and the rest."""
    match = _STATE.match(name)
    return (match.group(), name[match.end() :]) if match else ("", name)


def is_of_optimizer(name: str) -> bool:
    """Return whether a tensor belongs to the training and not to the network."""
    return bool(_STATE.match(name) or _OF_TRAINING.fullmatch(name))


@dataclass(frozen=True)
class Pairs:
    """The names of both sides, brought together.

    Attributes:
        names: of A and of B, None where a side has none; in the order of A, then of B.
        remarks: what was done for it.
    """

    names: tuple[tuple[str | None, str | None], ...]
    remarks: Messages = ()


def pair_names(a: Sequence[str], b: Sequence[str], rules: tuple[NameRule, ...]) -> Pairs:
    """Bring the names of two checkpoints together.

    Equal names belong together, after `rules`; where most have no partner as they are, a prefix is
    taken off that all of the network has, of an optimizer's state as well.

    Raises:
        UsageError: two parameters of one side come to one name.
    """
    names = match_names(_networks(a), _networks(b), rules)
    common_b: dict[str, str] = {}
    for name in b:
        _put(common_b, _common_b(names, name), name, "B")
    pairs: list[tuple[str | None, str | None]] = []
    seen: dict[str, str] = {}
    for name in a:
        key = _common_a(names, name)
        _put(seen, key, name, "A")
        pairs.append((name, common_b.get(key)))
    pairs += [(None, name) for key, name in common_b.items() if key not in seen]
    remarks: Messages = ()
    if names.prefix_a or names.prefix_b:
        remarks = (message("checkpoint.below", a=names.prefix_a, b=names.prefix_b),)
    elif names.unlike:
        remarks = (message("checkpoint.unlike_names"),)
    return Pairs(tuple(pairs), remarks)


def unused_rule(rules: Iterable[NameRule], names: Iterable[str]) -> NameRule | None:
    """Return the first rule that none of the names matches; None if all are used."""
    bare = {split_state(name)[1] for name in names}
    return next((r for r in rules if not any(r.rename(name) is not None for name in bare)), None)


def _networks(names: Iterable[str]) -> list[str]:
    """Return the names of parameters, without what optimizers put in front of them."""
    own = [name for name in names if not is_of_optimizer(name)]
    return own or [split_state(name)[1] for name in names]


def _common_a(names: Names, name: str) -> str:
    state, bare = split_state(name)
    found = names.common_a(bare)
    # What lies outside of the network that both have meets only its like.
    return state + (renamed(names.rules, bare) if found is None else found)


def _common_b(names: Names, name: str) -> str:
    state, bare = split_state(name)
    found = names.common_b(bare)
    return state + (bare if found is None else found)


def _put(found: dict[str, str], key: str, name: str, side: str) -> None:
    if key in found:
        two = {"first": shortened(found[key]), "second": shortened(name)}
        raise UsageError.saying("checkpoint.two_to_one", side=side, **two, name=shortened(key))
    found[key] = name
