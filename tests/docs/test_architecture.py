"""architecture.md is true: its paths exist, its names are where it says, its arrows hold."""

from __future__ import annotations

import ast
import graphlib
import re
from pathlib import Path

import pytest
from documents import ROOT

from mindrlhf_msprobe import ProbeConfig
from mindrlhf_msprobe.checks.loading import own_rules
from mindrlhf_msprobe.findings import CulpritCode

PACKAGE = ROOT / "mindrlhf_msprobe"
PAGES = ["docs/en/architecture.md", "docs/zh/architecture.md"]

_PATH = re.compile(r"[\w./-]+(?:/|\.py)")
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")


def rows_of(page: str) -> list[list[list[str]]]:
    """Return the rows of a page's tables as cells, each as the codes that stand in it."""
    text = (ROOT / page).read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    return [[re.findall(r"`([^`]+)`", cell) for cell in row.split("|")[1:-1]] for row in rows]


def home(path: str) -> Path:
    return ROOT / path if path.startswith(("tests/", "docs/")) else PACKAGE / path


def names_in(file: Path) -> set[str]:
    """Return what a module defines: functions, classes, their methods, and constants."""
    found: set[str] = set()

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.add(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix}{node.name}.")
            targets = node.targets if isinstance(node, ast.Assign) else []
            if isinstance(node, ast.AnnAssign):
                targets = [node.target]
            found.update(prefix + t.id for t in targets if isinstance(t, ast.Name))

    visit(ast.parse(file.read_text(encoding="utf-8")).body, "")
    return found


@pytest.mark.parametrize("page", PAGES)
def test_every_path_exists(page):
    """Files and folders of the package and of the tests, wherever they are named."""
    text = (ROOT / page).read_text(encoding="utf-8")
    paths = [code for code in re.findall(r"`([^`\n]+)`", text) if _PATH.fullmatch(code)]
    assert paths
    missing = [path for path in paths if path != "mindrlhf_msprobe/" and not home(path).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES)
def test_every_name_is_in_a_file_beside_it(page):
    """The names in the second column of "to add" are defined in one of the files there."""
    keys = {*ProbeConfig().to_json()}
    for _, touched in (row for row in rows_of(page) if len(row) == 2):
        files = [home(code) for code in touched if re.fullmatch(r"\S+\.py", code)]
        files += [
            file for code in touched if code.endswith("/") for file in home(code).rglob("*.py")
        ]
        defined = set().union(*map(names_in, files))
        names = {code for code in touched if _NAME.fullmatch(code)} - keys - {"culprit"}
        names = {name for name in names if not re.search(r"\.(py|json|yaml)$", name)}
        assert not files or names <= defined | {name.partition(".")[2] for name in defined}


def test_both_languages_name_the_same():
    """The Chinese page has the rows of the English one."""
    english, chinese = (
        [[sorted(cell) for cell in row[1:]] for row in rows_of(page)] for page in PAGES
    )
    assert english == chinese


def imported(file: Path) -> set[str]:
    """Return the modules that a file imports, by their first two names."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {".".join(name.split(".")[:2]) for name in found}


def test_rooms_import_what_the_page_says_and_no_more():
    """The third column of the first table holds for every module of a room."""
    text = (ROOT / PAGES[0]).read_text(encoding="utf-8")
    allowed = {
        room: set(re.findall(r"\w+", others)) - {"none"}
        for room, others in re.findall(r"^\| `(\w+)/` \|[^|]*\| ([\w, ]+) \|$", text, re.MULTILINE)
    }
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert set(allowed) == rooms
    for room in rooms:
        found = set()
        for file in (PACKAGE / room).rglob("*.py"):
            found |= {name.partition(".")[2] for name in imported(file)} & rooms - {room}
        assert found <= allowed[room], room


def test_no_module_is_imported_by_what_it_imports():
    """Not inside functions either; what only types need does not count."""

    def wanted(file: Path) -> set[Path]:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        of_types = {
            id(node)
            for each in ast.walk(tree)
            if isinstance(each, ast.If) and ast.unparse(each.test) == "TYPE_CHECKING"
            for node in ast.walk(each)
        }
        names = {
            f"{node.module}.{alias.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module and id(node) not in of_types
            for alias in node.names
        }
        return {home for name in names if (home := module_of(name)) not in (None, file)}

    graph = {file: wanted(file) for file in PACKAGE.rglob("*.py")}
    assert [*graphlib.TopologicalSorter(graph).static_order()]


def module_of(name: str) -> Path | None:
    """Return the file of a module, or of the module that has a name; None: of another package."""
    path = ROOT / name.replace(".", "/")
    places = (path.with_suffix(".py"), path / "__init__.py")
    places += (path.parent.with_suffix(".py"), path.parent / "__init__.py")
    return next((file for file in places if file.exists()), None)


def test_only_some_rooms_import_mindspore():
    """storage, comparison, report, cli and common work without it."""
    importing = {
        file.relative_to(PACKAGE).parts[0]
        for file in PACKAGE.rglob("*.py")
        if {name.partition(".")[0] for name in imported(file)} & {"mindspore", "mindformers"}
    }
    assert importing == {"capture", "replay", "integrations", "demo", "compat"}


@pytest.mark.parametrize(
    ("room", "unknown"),
    [
        *((room, "report") for room in ("capture", "storage", "comparison", "checks")),
        *(("findings", "report"), ("common", "report"), ("storage", "trends")),
    ],
)
def test_what_is_found_knows_nothing_of_how_it_is_shown(room, unknown):
    """Not by its name either, which can be imported as well."""
    for file in (PACKAGE / room).rglob("*.py"):
        assert f"mindrlhf_msprobe.{unknown}" not in file.read_text(encoding="utf-8"), file


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_check_and_every_explanation_is_documented(language):
    """What adds one is told to write its row."""
    pages = [ROOT / f"docs/{language}/{name}.md" for name in ("checking", "comparing")]
    checking, comparing = (page.read_text(encoding="utf-8") for page in pages)
    assert [rule.name for rule in own_rules() if rule.name not in checking] == []
    assert [code.value for code in CulpritCode if f"`{code.value}`" not in comparing] == []
