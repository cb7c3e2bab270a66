"""What the console and summary.xlsx say in the same words."""

from __future__ import annotations

from mindrlhf_msprobe.findings import Divergence, RuleUse, Weights


def place_of(first: Divergence) -> str:
    """Return where two runs part: step, phase, rank."""
    parts = (f"step {first.step}", first.phase, f"rank {first.rank}")
    return ", ".join(part for part in parts if part)


def before(first: Divergence) -> str:
    """Return what agreed before the first divergence."""
    records = f"{first.agreed_before} records of step {first.step} agree"
    phases = f"{count(first.agreed_phases, 'phase')} and " if first.agreed_phases else ""
    return f"{phases}{records}{_earlier_steps(first)}."


def _earlier_steps(first: Divergence) -> str:
    if not first.agreed_steps:
        return ""
    if first.agreed_steps != first.step:  # some were not recorded, or the first is not step 0
        return f", and all of {count(first.agreed_steps, 'earlier step')}"
    return ", and all of step 0" if first.step == 1 else f", and all of steps 0 to {first.step - 1}"


def weights_of(weights: Weights) -> str:
    """Return how many of a role's initial parameters differ, without their names."""
    if weights.agree:
        return f"all {count(weights.compared, 'parameter')} agree bit for bit"
    if not (weights.compared or weights.only_in_a or weights.only_in_b):
        return "nothing to compare"
    parts = [f"{len(weights.different)} of {count(weights.compared, 'parameter')} differ"]
    for names, side in ((weights.only_in_a, "A"), (weights.only_in_b, "B")):
        if names:
            parts.append(f"{len(names)} only in {side}")
    return ", ".join(parts)


def rule_use(rule: RuleUse) -> str:
    """Return a tolerance and how often it decided."""
    return f"{rule.rule}: {count(rule.records, 'record')}, {rule.passed} agree only by it"


def factor(value: float | None) -> str:
    """Return a growth as ×12, empty where it is not known."""
    return "" if value is None else f"×{value:.2g}" if value < 100 else f"×{value:.0f}"


def count(number: int, what: str) -> str:
    """Return a number of things: 1 step, 2 steps."""
    return f"{number} {what}" + ("" if number == 1 else "s")
