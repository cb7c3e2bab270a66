"""Write those parts of the documents that the code itself says: `python docs/generate.py`.

They stand between `<!-- generated: NAME -->` and `<!-- end -->`: in configuration.md the keys of
msprobe_config, made of configuration.yaml and the defaults of ProbeConfig; in api.md the public
names, made of their docstrings. The Chinese of a docstring stands in api_zh.yaml.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

#: Public, and not in `__all__`; see `mindrlhf_msprobe`.
ALSO_PUBLIC = ("ProbeCallback",)

#: The names of older tools: integration.md describes them.
OF_OLDER_TOOLS = (
    *("MsProbe", "SingleSave", "SingleComparator", "compare_distributed", "compare"),
    *("GradComparator", "PrecisionDebugger", "seed_all", "save", "save_grad", "step"),
)

#: What api.md describes, part by part: functions with their arguments, and what is returned.
PARTS = {
    "recording": ("Probe",),
    "reading": ("Run", "Entry", "Record", "Leaf", "KeyDatum", "StepTimes", "Series"),
    "comparing": ("compare_runs", "Comparison", "Verdict", "Divergence", "Finding"),
    "checking": ("check_run", "CheckResults", "CheckResult", "CheckFinding"),
}
DESCRIBED = ("names", *(each for part in PARTS.values() for each in part))

#: Where those of them stand that the package does not offer at its top.
HOMES = {
    **dict.fromkeys(("Entry", "Record"), "storage.records"),
    **dict.fromkeys(("Comparison", "Verdict", "Divergence", "Finding"), "findings"),
    **dict.fromkeys(("CheckResults", "CheckResult", "CheckFinding"), "findings.health"),
    "Leaf": "storage.leaves",
    "KeyDatum": "storage.reading.keydata",
    "StepTimes": "storage.step_lines",
    "Series": "storage.reading.series",
}

#: What is named without a word more: `help()` tells of members, the command line of arguments.
BRIEF = {
    "Probe": ("record_more",),
    "Run": (
        *("dialect", "directories", "each_entry", "entries_named"),
        *("first_weights", "foreign"),
        *("initial_weights", "is_thinned", "journal", "journal_path", "keys_at", "layer_places"),
        *("left_out", "lines", "locator", "manifests", "missing_ranks", "network_of", "phases_at"),
        *("places", "side_lines", "stop_of", "timed_steps", "times_are_lost"),
    ),
    "Entry": (
        *("seq", "end", "parent", "opening", "attributes", "call_name"),
        *("argument", "at", "place", "time", "values"),
    ),
    "Record": ("location", "opened", "sketches"),
    "Leaf": (
        *("is_tensor", "is_integer", "is_discrete", "at_optimizer", "dialect", "md5", "opaque"),
        *("rounding", "shard", "shares", "signs", "sketch", "whole", "further", "stored"),
        *("to_json", "to_key_data_json"),
    ),
    "KeyDatum": ("structure",),
    "StepTimes": ("unlisted", "unlisted_key_data"),
    "Series": ("identity", "kind", "notes", "to_json"),
    "compare_runs": (
        *("noise", "mapping", "cell_mapping", "api_mapping", "data_mapping", "layer_mapping"),
        *("tokenizer", "layout", "steps", "include", "exclude", "keys", "first_only", "common"),
        *("after", "engine", "address", "workers", "csv", "lang", "all_rows"),
    ),
    "Comparison": ("agreements", "all_cells", "chosen", "fingerprints", "verdict_file"),
    "Verdict": ("not_read", "unread"),
    "Divergence": (
        *("agreed_before", "agreed_phases", "agreed_steps", "last_agreeing", "argument"),
        *("is_explained", "next_step_bytes", "next_step_estimated", "next_step_whole"),
        *("non_finite_in", "occasion", "to_json"),
    ),
    "Finding": ("argument", "io", "path", "of_text"),
    "CheckResult": ("to_json",),
    "CheckFinding": ("all", "to_json"),
}
_MORE = {
    "en": ("more, see `help({})`: ", "as the options of `mindrlhf-msprobe compare`: "),
    "zh": ("其余见 `help({})`：", "与 `mindrlhf-msprobe compare` 的选项相同："),
}

_MARKS = {"en": (", ", ": ", "."), "zh": ("、", "：", "。")}

_GENERATED = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_STOP = re.compile(r"; |(?<!e\.g)\.(?: (?=[A-Z`])|$)")


def configuration(language: str) -> dict[str, str]:
    """Return the generated part of configuration.md, by name."""
    from mindrlhf_msprobe import ProbeConfig

    defaults = {key: f"`{json.dumps(value)}`" for key, value in ProbeConfig().to_json().items()}
    head = {"en": "| key | default | meaning |", "zh": "| 配置项 | 默认值 | 含义 |"}[language]
    comma, lines = _MARKS[language][0], list[str]()
    for group in read("configuration.yaml"):
        lines += ["", f"## {group['title'][language]}", "", head, "|---|---|---|"]
        for keys, texts in group["keys"].items():
            names = comma.join(f"`{key}`" for key in keys.split(", "))
            values = comma.join(dict.fromkeys(defaults[key] for key in keys.split(", ")))
            lines.append(f"| {names} | {values} | {texts[language]} |")
    return {"keys": "\n".join(lines)}


def api(language: str) -> dict[str, str]:
    """Return the generated parts of api.md, by name."""
    lists = {name: listed(name, language) for name in DESCRIBED}
    parts = {
        part: "\n\n".join(f"### {name}\n\n{lists[name]}" for name in names)
        for part, names in PARTS.items()
    }
    return {"names": lists["names"], **parts}


def listed(name: str, language: str) -> str:
    """Return the list of what the docstrings, or the Chinese for them, say of one name."""
    texts = described(name) if language == "en" else read("api_zh.yaml")[name]
    owner, (comma, colon, stop) = owner_of(name), _MARKS[language]
    lines = [texts[""].rstrip(stop) + stop, ""] if texts.get("") else []
    for names, text in texts.items():
        if names:
            codes = comma.join(f"`{signature_of(owner, each)}`" for each in names.split(", "))
            lines.append(f"- {codes}{colon}{text}".removesuffix(colon))
    if name in BRIEF:
        codes = comma.join(f"`{each}`" for each in BRIEF[name])
        lead = _MORE[language][inspect.isfunction(owner)].format(name)
        lines.append(f"- {lead}{codes}")
    return "\n".join(lines)


def owner_of(name: str) -> Any:
    """Return the class or function that a list describes, None of `names`: it is the package's."""
    home = f"mindrlhf_msprobe.{HOMES[name]}" if name in HOMES else "mindrlhf_msprobe"
    return getattr(importlib.import_module(home), name, None)


def members_of(name: str) -> list[str]:
    """Return what a part describes, in the order of the source."""
    import mindrlhf_msprobe

    if name == "names":
        names = (*mindrlhf_msprobe.__all__, *ALSO_PUBLIC)
        others = ("__version__", *DESCRIBED, *OF_OLDER_TOOLS)
        return [each for each in names if each not in others]
    if inspect.isfunction(owner_of(name)):
        found = dict.fromkeys(inspect.signature(owner_of(name)).parameters)
        return [each for each in found if each not in BRIEF.get(name, ())]
    found = dict.fromkeys(
        one.strip() for names in attributes_of(owner_of(name)) for one in names.split(",")
    )
    if dataclasses.is_dataclass(owner_of(name)):
        found = dict.fromkeys(field.name for field in dataclasses.fields(owner_of(name)))
    for cls in ancestors(owner_of(name)):
        found |= dict.fromkeys(each for each in vars(cls) if not each.startswith("_"))
    return [each for each in found if each not in BRIEF.get(name, ())]


def ancestors(cls: type) -> list[type]:
    """Return a class and those of this package that it extends, the first of them first."""
    return [each for each in reversed(cls.__mro__) if each.__module__.startswith("mindrlhf")]


def described(name: str) -> dict[str, str]:
    """Return what the docstrings say of a part's members; members without a word come last."""
    owner, members = owner_of(name), members_of(name)
    if name == "names":
        import mindrlhf_msprobe

        return {each: summary(getattr(mindrlhf_msprobe, each)) for each in members}
    listed = section(owner, "Args") if inspect.isfunction(owner) else attributes_of(owner)
    texts = {each: (names, text) for names, text in listed.items() for each in names.split(", ")}
    found, silent = {"": summary(owner)}, []
    for each in members:
        if each in texts:
            names, text = texts[each]
            found[", ".join(one for one in names.split(", ") if one in members)] = text
        elif said := unwrapped(inspect.getattr_static(owner, each, None)):
            found[each] = summary(said)
        else:
            silent.append(each)
    return found | ({", ".join(silent): ""} if silent else {})


def attributes_of(cls: type) -> dict[str, str]:
    """Return the attributes that a class and those of its name describe: names → text."""
    return {k: v for each in ancestors(cls) for k, v in section(each, "Attributes").items()}


def unwrapped(member: Any) -> Any:
    """Return the function behind a method or property, None of a plain attribute."""
    for name in ("fget", "func", "__func__"):
        member = getattr(member, name, member)
    return member if inspect.isfunction(member) else None


def summary(of: Any) -> str:
    """Return the first sentence of a docstring."""
    return sentence((inspect.getdoc(of) or "").partition("\n\n")[0])


def sentence(text: str) -> str:
    """Return the first sentence of a text in one line, up to its semicolon or full stop."""
    return _STOP.split(" ".join(text.split()))[0].removeprefix("Return ")


def section(of: Any, title: str) -> dict[str, str]:
    """Return one of a docstring's sections: the names before each colon → the text behind it."""
    lines = (inspect.getdoc(of) or "").partition(f"{title}:\n")[2].partition("\n\n")[0]
    items = re.split(r"^    (?=\w)", lines, flags=re.MULTILINE)[1:]
    pairs = (item.partition(": ") for item in items)
    return {names: sentence(text) for names, _, text in pairs}


def signature_of(owner: Any, name: str) -> str:
    """Return how a member is written: a call with its arguments, or its name."""
    import mindrlhf_msprobe

    if inspect.isfunction(owner):  # its arguments are described
        return name
    static = inspect.getattr_static(mindrlhf_msprobe if owner is None else owner, name, None)
    call = getattr(static, "__func__", static)
    if not inspect.isfunction(call):
        return name
    arguments = [
        one.replace(annotation=one.empty, default=one.default if shows(one.default) else ...)
        for one in inspect.signature(call).parameters.values()
        if one.name not in ("self", "cls")
    ]
    if len(arguments) > 7:
        arguments = [one for one in arguments if one.default is one.empty]
        return f"{name}({', '.join(one.name for one in arguments)}, …)"
    return name + str(inspect.Signature(arguments)).replace("Ellipsis", "…")


def shows(default: Any) -> bool:
    """Return whether the text of a default says what it is."""
    return default is inspect.Parameter.empty or type(default) is not object


def read(name: str) -> Any:
    """Return the content of a YAML file that lies beside this one."""
    return yaml.safe_load((HERE / name).read_text(encoding="utf-8"))


def fresh(page: Path, parts: Mapping[str, str]) -> str:
    """Return a page's text with its generated parts as they should be."""
    text = page.read_text(encoding="utf-8")
    return _GENERATED.sub(lambda found: f"{found[1]}{parts[found[2]]}\n\n{found[3]}", text)


def pages() -> dict[Path, str]:
    """Return what every generated page should hold."""
    return {
        page: fresh(page, make(language))
        for language in ("en", "zh")
        for name, make in (("configuration.md", configuration), ("api.md", api))
        for page in (HERE / language / name,)
    }


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")
