"""What differs before any tensor and may explain a divergence, in English."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages.en.words import counted


def _agree(role: str | None, networks: int, parameters: int) -> str:
    whose = f"{networks} networks" if role is None else role
    return f"The initial weights of the {whose} agree ({counted(parameters, 'parameter')})"


def _weights_agree(role: str | None, networks: int, parameters: int) -> str:
    return f"{_agree(role, networks, parameters)}."


def _weights_agree_but(role: str | None, networks: int, parameters: int, but: str) -> str:
    return f"{_agree(role, networks, parameters)}, but {but}."


def _only_random(role: str | None, networks: int, parameters: int) -> str:
    agree = _agree(role, networks, parameters)
    return f"{agree}; of the settings, only the state of Python's random generator differs."


def _no_setting(role: str | None, networks: int, parameters: int) -> str:
    return f"{_agree(role, networks, parameters)}, and no setting that both recorded differs."


def _weights_differ(role: str, different: int, compared: int, first: str) -> str:
    return (
        f"The initial weights of the {role} differ in {different} of "
        f"{counted(compared, 'parameter')}, first {first}: look at the checkpoint that was loaded."
    )


def _sentence(what: str) -> str:
    return f"{what[0].upper()}{what[1:]}."


def _against(a: str | None, b: str | None) -> str:
    return " against ".join("not set" if text is None else text for text in (a, b))


def _seed(name: str, a: str | None, b: str | None) -> str:
    which = "" if name == "mindspore" else f" {name}"
    return f"the seed{which} differs: {_against(a, b)}"


def _generator(whose: str, step: int | None) -> str:
    since = "" if step is None else f" from step {step} on"
    return f"{whose}'s random generator was in another state{since}"


def _determinism(name: str, a: str | None, b: str | None) -> str:
    return f"the determinism setting {name} differs: {_against(a, b)}"


def _settings(count: int, section: str, name: str, a: str | None, b: str | None) -> str:
    first = f"{section} {name}: {_against(a, b)}"
    if count == 1:
        return f"1 setting differs: {first}"
    return f"{counted(count, 'setting')} differ, the first: {first}"


TEXTS = {
    "weights_agree": _weights_agree,
    "weights_agree_but": _weights_agree_but,
    "only_random": _only_random,
    "no_setting": _no_setting,
    "weights_differ": _weights_differ,
    "other_parameters": (
        "The networks of the {role} do not have the same parameters: {count} stand in one run "
        "alone, first {first} in {side}."
    ),
    "sentence": _sentence,
    "seed": _seed,
    "generator": _generator,
    "determinism": _determinism,
    "settings": _settings,
}
