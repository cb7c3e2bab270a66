"""What a rule is, and the decorator that makes one of a function or a class.

A rule of one step alone is a generator function: it is given the step, with all of its ranks, and
its `Check`, and yields findings. A rule that looks at journals or entries, or waits for the end, is
a class with any of the methods `journal`, `entry`, `step` and `end`; one instance is made for each
run. Where it has `learns = True`, it is given the healthy runs before (`Check.learning`).
`Step.parameters` and `Step.gradients` hold those of all journals of the step.

    @rule("rl.kl_negative", needs=(key("kl"),), severity=Severity.ERROR, thresholds={"atol": 1e-6})
    def kl_negative(step: Step, check: Check) -> Iterator[Found]: ...

    @rule("history.jump", needs=(steps(9),))
    class Jump:
        def __init__(self, check: Check) -> None: ...
        def journal(self, journal: Columns) -> None: ...      # records of many entries, as columns
        def entry(self, entry: EntryView) -> None: ...        # in the order in which they ended
        def step(self, step: Step) -> Iterator[Found]: ...    # when all ranks' entries were given
        def end(self) -> Iterator[Found]: ...                 # after the last step
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import field
from typing import Any, TypeVar

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.findings.health import Severity

_Made = TypeVar("_Made", bound=Callable[..., Any])


@dataclass(frozen=True)
class Need:
    """Something a run must hold for a rule to say anything.

    Attributes:
        kind: numbers, layers, parameters, gradients, backward, fingerprints, elements, key, phase,
            ranks, steps, or healthy.
        names: of kind key and phase, those of which one is enough.
        count: of kind ranks and steps, how many there must be.
    """

    kind: str
    names: tuple[str, ...] = ()
    count: int = 1

    @property
    def said(self) -> Message:
        """Why a rule with this need did not run."""
        params = {"names": ", ".join(self.names), "count": self.count}
        return message("checks.lacks", kind=self.kind, **params)


#: Statistics of layer data, or any key data; layer data at all; entries with parameters; entries
#: with gradients of parameters; backward entries; fingerprints of layer data; runs that are known
#: to be healthy (`--healthy`).
NUMBERS = Need("numbers")
LAYERS = Need("layers")
PARAMETERS = Need("parameters")
GRADIENTS = Need("gradients")
BACKWARD = Need("backward")
FINGERPRINTS = Need("fingerprints")
HEALTHY = Need("healthy")


def key(*names: str) -> Need:
    """Need key data of one of these names."""
    return Need("key", names)


def phase(*names: str) -> Need:
    """Need layer data of one of these phases."""
    return Need("phase", names)


def ranks(count: int) -> Need:
    """Need at least so many ranks."""
    return Need("ranks", count=count)


def steps(count: int) -> Need:
    """Need at least so many steps."""
    return Need("steps", count=count)


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        name: `<area>.<name>`, by which rule files and findings call it.
        make: the function, or the class.
        needs: all of which a run must hold.
        severity: of its findings that say no other one.
        causes: codes of what its findings usually come from, the likeliest first.
        thresholds: name → default.
        follows: names of rules, or areas (`non_finite.*`), from whose earlier findings its
            findings follow: they stand under those.
        marks: bytes of which a journal's line must hold one for `entry` to be given its entry;
            none: it is given every entry. A line without the bytes costs nothing.
        live: whether it can run while training (`on_finding`), where a rank sees its own steps
            alone, as they end.
        names: tells of an entry's name whether `entry` is given the entry; it is called once for
            all journals of one layout. None: it is given every entry.
    """

    name: str
    make: Callable[..., Any]
    needs: tuple[Need, ...] = ()
    severity: Severity = Severity.WARNING
    causes: tuple[str, ...] = ()
    thresholds: Mapping[str, float] = field(default_factory=dict)
    follows: tuple[str, ...] = ()
    marks: tuple[bytes, ...] = ()
    live: bool = False
    names: Callable[[str], bool] | None = None

    @property
    def area(self) -> str:
        """The part of the name before the first dot."""
        return self.name.partition(".")[0]


def rule(
    name: str,
    *,
    needs: Collection[Need] = (),
    severity: Severity | str = Severity.WARNING,
    causes: Collection[str] = (),
    thresholds: Mapping[str, float] | None = None,
    follows: Collection[str] = (),
    marks: Collection[bytes] = (),
    live: bool = False,
    names: Callable[[str], bool] | None = None,
) -> Callable[[_Made], _Made]:
    """Make a rule of a function or a class; see `Rule` for the arguments.

    What is decorated stays what it is; the rule is its attribute `rule`.
    """
    made = Severity(severity)

    def decorate(make: _Made) -> _Made:
        make.rule = Rule(  # type: ignore[attr-defined]
            name,
            make,
            tuple(needs),
            made,
            tuple(causes),
            dict(thresholds or {}),
            tuple(follows),
            tuple(marks),
            live,
            names,
        )
        return make

    return decorate


def as_rule(found: Any, name: str) -> Rule:
    """Return the rule that an object is, or a rule of a bare function or class.

    Args:
        name: what a bare function's rule is called.

    Raises:
        UsageError: it is neither.
    """
    if isinstance(found, Rule):
        return found
    made = getattr(found, "rule", None)
    if isinstance(made, Rule):
        return made
    if callable(found):
        return Rule(name, found)
    raise UsageError.saying("checks.no_rule", name=name, found=type(found).__name__)
