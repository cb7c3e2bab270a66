"""What counts as the same number; and which tolerance a record is compared with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Messages, message
from mindrlhf_msprobe.common.patterns import PatternError, pattern
from mindrlhf_msprobe.common.yaml_file import read_rules
from mindrlhf_msprobe.errors import ConfigError, UsageError, nearest_of
from mindrlhf_msprobe.storage.leaves import Leaf

_FIELDS = ("rtol", "atol")


@dataclass(frozen=True)
class Tolerance:
    """What counts as the same: |a−b| ≤ atol + rtol · max(|a|, |b|), element by element.

    The default is bitwise: nothing but equal values is the same.

    Raises:
        ConfigError: one of the two is no number, or a negative one.
    """

    rtol: float = 0.0
    atol: float = 0.0

    def __post_init__(self) -> None:
        for name in ("rtol", "atol"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise ConfigError.saying("tolerance.number", name=name, value=repr(value))

    @property
    def bitwise(self) -> bool:
        """Whether only equal values are the same."""
        return self.rtol == 0 and self.atol == 0

    def allows(self, a: Any, b: Any) -> bool:
        """Return whether two Python numbers are within the tolerance, without rounding.

        What is not finite, or no number, is within no tolerance: not even its equal, of which
        nothing follows for what made it overflow.
        """
        if not (is_finite(a) and is_finite(b)):
            return False
        if isinstance(a, Fraction) or isinstance(b, Fraction):
            return self._allows_exactly(a, b)
        try:
            distance = float(abs(a - b))
            allowed = self.atol + self.rtol * float(max(abs(a), abs(b)))
        except OverflowError:  # Python integers beyond every float
            return self._allows_exactly(a, b)
        if _SURE < distance < math.inf and _SURE < allowed < math.inf:
            if distance < allowed * (1 - _ROUNDING):
                return True
            if distance > allowed * (1 + _ROUNDING):
                return False
        return self._allows_exactly(a, b)

    def _allows_exactly(self, a: Any, b: Any) -> bool:
        x, y = Fraction(a), Fraction(b)
        larger = max(abs(x), abs(y))
        return abs(x - y) <= Fraction(self.atol) + Fraction(self.rtol) * larger


_ROUNDING = 1e-12  # far more than floats lose in a difference, a product and a sum
_SURE = 1e-280  # above it none of them loses digits


def is_number(value: Any) -> bool:
    """Return whether a value is a real number, NaN and infinities included."""
    return isinstance(value, (int, float))


def is_finite(value: Any) -> bool:
    """Return whether a value is a number that is neither NaN nor infinite."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, (int, Fraction))


def is_nan(value: Any) -> bool:
    """Return whether a value is the float NaN."""
    return isinstance(value, float) and math.isnan(value)


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


def is_across(a: Leaf, b: Leaf) -> bool:
    """Return whether one of two tensors is PyTorch's and the other is not."""
    return a.is_tensor and b.is_tensor and is_of_torch(a) != is_of_torch(b)


def is_of_torch(leaf: Leaf) -> bool:
    """Return whether a program on PyTorch had a tensor."""
    return leaf.type.startswith("torch.")


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
