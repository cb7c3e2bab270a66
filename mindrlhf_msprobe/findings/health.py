"""What checks of one run conclude: findings, and what was not checked. All that report/ knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, Messages, in_words
from mindrlhf_msprobe.findings.comparison import Stopped
from mindrlhf_msprobe.findings.words import SCHEMA, Keyword, Shown, by_fields, by_names
from mindrlhf_msprobe.storage.arrays.atomic import number_to_json
from mindrlhf_msprobe.storage.place import Place


class Severity(Keyword):
    """How grave a finding is; a note does not change the exit code."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"

    @property
    def counts(self) -> bool:
        """Whether a run with such a finding is not healthy."""
        return self is not Severity.NOTE


class Health(Keyword):
    """What the check of one run, or of several, says."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    NOT_CHECKED = "not_checked"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One record that shows a finding, with what of it does.

    Attributes:
        values: name → number, text or list of them, e.g. `max`, `nan_count`, `fingerprint`.
        note: what it is, beside the finding; None where the values say it.
    """

    place: Place
    values: Mapping[str, Any] = field(default_factory=dict)
    note: Message | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        note = by_names(self, "note!s?", "note_code=note?")
        return {**self.place.to_json(), "values": json_values(self.values), **note}


@dataclass(frozen=True)
class CheckFinding(Shown):
    """One thing that a rule found in a run.

    Attributes:
        rule: the rule's name, e.g. `non_finite.first`.
        severity: `error`, `warning` or `note`.
        said: what was found, a code with parameters.
        place: where it was found first.
        causes: what it usually comes from, the likeliest first.
        evidence: records that show it, each with `place`, `values` and `note`.
        next_step: an msprobe_config section that records the place more closely, or None.
        stack: the call stack of the entry, innermost first.
        times: how often it was found, here and in later steps.
        last_step: the last step of it.
        ranks: the ranks of it.
        followed_by: the later findings that follow from it.
    """

    _shown = (
        *("rule", "severity", "text", "code=said", "place", "times", "last_step", "ranks"),
        *("causes!s", "causes_codes=causes", "evidence", "next_step", "stack", "followed_by"),
    )

    rule: str
    severity: Severity
    said: Message
    place: Place
    causes: Messages = ()
    evidence: tuple[Evidence, ...] = ()
    next_step: dict[str, Any] | None = None
    stack: tuple[str, ...] = field(default=(), repr=False)
    times: int = 1
    last_step: int = 0
    ranks: tuple[int, ...] = ()
    followed_by: tuple[CheckFinding, ...] = ()

    @property
    def text(self) -> str:
        """`said` as text; in the language that was chosen, else the locale's."""
        return in_words(self.said)

    def all(self) -> Iterator[CheckFinding]:
        """Yield it, and what follows from it."""
        yield self
        for finding in self.followed_by:
            yield from finding.all()


@dataclass(frozen=True)
class NotChecked(Shown):
    """A rule that could not run, or not everywhere, and why.

    Attributes:
        failed: whether it raised an exception: then nothing says that a run is healthy.
    """

    _shown = ("rule", "why!s", "code=why")

    rule: str
    why: Message
    failed: bool = False


@dataclass(frozen=True)
class CheckResult:
    """What the check of one run concludes; true if something was checked and nothing is wrong.

    Attributes:
        path: the run's directory.
        findings: in order of time; what follows from one stands under it.
        checked: the names of the rules that ran.
        not_checked: what could not be checked, each with `rule` and `why`.
        problems: what of the run could not be read.
        steps, ranks, entries, saves: how many there were of each.
        stopped: where the ranks stopped that did not finish.
    """

    path: str
    findings: tuple[CheckFinding, ...] = ()
    checked: tuple[str, ...] = ()
    not_checked: tuple[NotChecked, ...] = ()
    problems: Messages = ()
    steps: int = 0
    ranks: int = 0
    entries: int = 0
    saves: int = 0
    stopped: tuple[Stopped, ...] = ()

    def __bool__(self) -> bool:
        return self.status is Health.HEALTHY

    @property
    def all_findings(self) -> list[CheckFinding]:
        """Every finding, those that follow from another one, too."""
        return [one for finding in self.findings for one in finding.all()]

    @property
    def counts(self) -> dict[str, int]:
        """How many findings there are of each severity."""
        counted = Counter(finding.severity for finding in self.all_findings)
        return {severity.value: counted[severity] for severity in Severity}

    @property
    def status(self) -> Health:
        """`healthy`, `unhealthy` or `not_checked`.

        A note alone does not make a run unhealthy. Where a rule failed, or there was nothing to
        read, its health is not known.
        """
        if any(finding.severity.counts for finding in self.all_findings):
            return Health.UNHEALTHY
        known = self.checked and self.steps and not self.failed
        return Health.HEALTHY if known else Health.NOT_CHECKED

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the rules that raised an exception."""
        return tuple(one.rule for one in self.not_checked if one.failed)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        stopped = [{n: v for n, v in by_fields(s).items() if n != "run"} for s in self.stopped]
        return {
            **by_names(self, "run=path", "status", "counts", "findings", "checked"),
            **by_names(self, "not_checked", "problems!s", "steps", "ranks", "entries", "saves"),
            **({"stopped": stopped} if stopped else {}),
        }


@dataclass(frozen=True)
class CheckResults:
    """What the checks of several runs conclude; true if every run is healthy."""

    runs: tuple[CheckResult, ...]

    def __bool__(self) -> bool:
        return self.status is Health.HEALTHY

    @property
    def status(self) -> Health:
        """Unhealthy if one run is; else not checked if one could not be; else healthy."""
        found = {run.status for run in self.runs}
        order = (Health.UNHEALTHY, Health.NOT_CHECKED, Health.HEALTHY)
        return next((status for status in order if status in found), Health.NOT_CHECKED)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {"schema": SCHEMA, **by_names(self, "status", "runs")}


def json_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as JSON holds them: NaN and infinity as texts, other things as their text."""
    return {name: _json(value) for name, value in values.items()}


def _json(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_json(item) for item in value]
    if isinstance(value, Mapping):
        return json_values(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    try:
        return number_to_json(float(value))
    except (TypeError, ValueError):
        return str(value)
