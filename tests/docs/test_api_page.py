"""The API page lists every public member of the classes it describes, and nothing that is not."""

from __future__ import annotations

import dataclasses
import inspect
import re

import pytest
from documents import ROOT

import mindrlhf_msprobe
from mindrlhf_msprobe import Probe, Run, compare_runs
from mindrlhf_msprobe.findings import Comparison, Divergence, Finding, Verdict
from mindrlhf_msprobe.findings.health import CheckFinding, CheckResult, CheckResults
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.reading.series import Series
from mindrlhf_msprobe.storage.records import Entry, Record

PAGES = ["docs/en/api.md", "docs/zh/api.md"]
CLASSES = [
    *(Probe, Run, Entry, Record, Leaf, KeyDatum, Comparison, Verdict, Divergence, Finding),
    *(CheckResults, CheckResult, CheckFinding, Series),
]

_CODE = re.compile(r"`([^`]+)`")
_CALL = re.compile(r"(\w+)(?:\((.*)\))?")


def described(page: str, heading: str) -> dict[str, str | None]:
    """Return the members of the table under a heading: name → arguments, None of an attribute."""
    text = (ROOT / page).read_text(encoding="utf-8")
    section = re.split(r"^#+ ", text.partition(f"\n### {heading}\n")[2], flags=re.MULTILINE)[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    found: dict[str, str | None] = {}
    for code in (code for row in rows for code in _CODE.findall(row.split(" | ")[0])):
        match = _CALL.fullmatch(code)
        assert match is not None, code
        assert match[1] not in found, code
        found[match[1]] = match[2]
    return found


def public_members(cls: type) -> set[str]:
    """Return what a class offers: methods, properties, fields, what its methods set.

    A class that is extended under its own name offers what that one does, too.
    """
    members: set[str] = set()
    for of in (each for each in cls.__mro__ if each.__name__ == cls.__name__):
        members |= {name for name in vars(of) if not name.startswith("_")}
        if dataclasses.is_dataclass(of):
            members |= {field.name for field in dataclasses.fields(of)}
        else:
            source = inspect.getsource(of)
            members |= set(re.findall(r"self\.([a-z]\w*)\s*[:=]", source))
    return members


def parameters(arguments: str) -> list[str]:
    """Return the names of the arguments that stand between parentheses."""
    parts = [part.partition("=")[0].strip(" *") for part in arguments.split(",")]
    return [part for part in parts if part not in ("", "/")]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_member_is_described_with_its_arguments(page: str, cls: type) -> None:
    """No member is missing, none is made up, and calls name their parameters in order."""
    members = described(page, cls.__name__)
    assert set(members) == public_members(cls)
    for name, arguments in members.items():
        member = inspect.getattr_static(cls, name, None)
        callable_ = isinstance(member, classmethod) or inspect.isfunction(member)
        assert callable_ is (arguments is not None), name
        if arguments is not None:
            signature = inspect.signature(getattr(cls, name))
            wanted = [p for p in signature.parameters if p != "self"]
            assert parameters(arguments) == wanted, name


@pytest.mark.parametrize("page", PAGES)
def test_every_argument_of_a_comparison_is_described(page: str) -> None:
    """compare_runs has many; none is missing or made up."""
    assert list(described(page, "compare_runs")) == list(inspect.signature(compare_runs).parameters)


@pytest.mark.parametrize("page", PAGES)
def test_every_name_of_the_package_is_there(page: str) -> None:
    """What `from mindrlhf_msprobe import *` gives stands in the first table."""
    table = (ROOT / page).read_text(encoding="utf-8").partition("\n## ")[0]
    named = {name.partition("(")[0] for row in table.splitlines() for name in _CODE.findall(row)}
    assert set(mindrlhf_msprobe.__all__) - {"__version__"} <= named


@pytest.mark.parametrize(("readme", "page"), [*zip(["README.md", "README_CN.md"], PAGES)])
def test_the_readme_leads_to_it(readme: str, page: str) -> None:
    """Among the documents at the end of both READMEs."""
    assert f"]({page})" in (ROOT / readme).read_text(encoding="utf-8")
