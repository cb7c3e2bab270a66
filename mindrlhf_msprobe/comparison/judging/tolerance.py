"""Which tolerance a record is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Messages, message
from mindrlhf_msprobe.common.patterns import PatternError, pattern
from mindrlhf_msprobe.common.yaml_file import read_rules
from mindrlhf_msprobe.comparison.judging.metrics.blocks import Tolerance, is_finite
from mindrlhf_msprobe.errors import ConfigError, UsageError, nearest_of
from mindrlhf_msprobe.storage.leaves import Leaf

_FIELDS = ("rtol", "atol")


@dataclass(frozen=True)
class Rule:
    """A tolerance for the records whose names match.

    Attributes:
        pattern: a regular expression, searched in the name of a record or of key data.
    """

    pattern: str
    tolerance: Tolerance

    @cached_property
    def said(self) -> Messages:
        """What tables say of the rule."""
        if self.tolerance.bitwise:
            return (message("tolerance.bitwise_rule", pattern=self.pattern),)
        rtol, atol = self.tolerance.rtol, self.tolerance.atol
        return (message("tolerance.rule", rtol=rtol, atol=atol, pattern=self.pattern),)


@dataclass(frozen=True)
class Tolerances:
    """The tolerance of every record: that of the first rule that matches, else the default."""

    default: Tolerance = field(default_factory=Tolerance)
    rules: tuple[Rule, ...] = ()

    def matching(self, *names: str) -> tuple[Tolerance, Messages]:
        """Return the tolerance of a record by its names, and what says which; empty if bitwise."""
        for rule in self.rules:
            if any(map(pattern(rule.pattern).search, names)):
                return rule.tolerance, rule.said
        return self.default, self._said

    @cached_property
    def _said(self) -> Messages:
        if self.default.bitwise:
            return ()
        return (message("tolerance.default", rtol=self.default.rtol, atol=self.default.atol),)


#: How far the kernels of two frameworks may be apart, relative to the largest element.
_ACROSS = {"Float64": 1e-9, "Float32": 1e-4, "Float16": 1e-2, "BFloat16": 3e-2}
#: What is left where sums cancel, relative to the largest element beside them.
_CANCELLED = {"Float64": 1e-14, "Float32": 1e-6, "Float16": 1e-2, "BFloat16": 3e-2}
_WHOLE = 1e-9  # whole numbers are equal or at least 1 apart


def across_frameworks(a: Leaf, b: Leaf, beside: float = 0.0) -> tuple[Tolerance, Messages]:
    """Return the tolerance of a tensor of MindSpore and one of PyTorch, where none was given.

    It is relative to the largest element: what is small beside others is what their kernels, which
    sum in another order, leave of these. Whole numbers are compared by value, whatever their width;
    floats of unlike dtypes are not: that is a difference of its own.

    Args:
        beside: the largest element of all gradients of the cell. That of a bias before a
            normalisation, or of the keys, is zero but for what rounding leaves of it.
    """
    if a.is_discrete and b.is_discrete:
        return Tolerance(atol=_WHOLE), (message("tolerance.across_whole"),)
    allowed = _ACROSS.get(str(a.dtype)) if a.dtype == b.dtype else None
    if allowed is None:
        return Tolerance(), ()
    sizes = [abs(v) for leaf in (a, b) for v in (leaf.max, leaf.min) if is_finite(v)]
    said = (message("tolerance.across", dtype=str(a.dtype), allowed=allowed),)
    largest = min(max(sizes, default=0.0), _LARGEST)
    left = _CANCELLED[str(a.dtype)] * min(beside, _LARGEST)
    return Tolerance(rtol=allowed, atol=max(allowed * largest, left)), said


_LARGEST = 1e30


def load_rules(path: str | Path) -> tuple[Rule, ...]:
    """Read tolerance rules: a YAML mapping from patterns to `{rtol: …, atol: …}`.

    Raises:
        ConfigError: the file cannot be read, or is not such a mapping.
    """
    rules = read_rules(path, message("error.rule"), "lm_head: {rtol: 1e-3}")
    return tuple(_rule(path, pattern, values) for pattern, values in rules.items())


def _rule(path: str | Path, text: Any, values: Any) -> Rule:
    if not isinstance(text, str) or not isinstance(values, Mapping) or not values:
        raise ConfigError.saying("error.rule_form", path=path, text=text, values=values)
    for name in values:
        if name not in _FIELDS:
            near = nearest_of(str(name), _FIELDS)
            raise ConfigError.saying(
                "error.rule_key", path=path, text=text, name=name, nearest=near
            )
    try:
        pattern(text)
    except PatternError as error:
        raise ConfigError.saying(
            "error.rule_pattern", where=path, pattern=text, why=error
        ) from None
    try:
        return Rule(text, Tolerance(**{name: _number(v) for name, v in values.items()}))
    except ConfigError as error:
        raise ConfigError.saying("error.rule_value", path=path, text=text, error=error) from None


def _number(value: Any) -> Any:
    """Return YAML's number; it reads 1e-3, without a dot, as text."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return None if isinstance(value, bool) else value


def tolerances(tolerance: Tolerance | Tolerances | str | Path | None) -> Tolerances:
    """Return the tolerances that a caller meant: one for all, a file of rules, or both.

    Raises:
        UsageError: it is neither.
        ConfigError: the file of rules is wrong.
    """
    if tolerance is None:
        return Tolerances()
    if isinstance(tolerance, Tolerances):
        return tolerance
    if isinstance(tolerance, Tolerance):
        return Tolerances(tolerance)
    if isinstance(tolerance, (str, Path)):
        return Tolerances(rules=load_rules(tolerance))
    raise UsageError.saying("error.tolerance", tolerance=tolerance)
