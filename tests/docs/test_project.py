"""The project's own promises: the README's commands, the examples, the licence."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from mindrlhf_msprobe import load_config
from mindrlhf_msprobe.demo.command import EXAMPLE, example_path

ROOT = Path(__file__).parents[2]

PACKAGE = ROOT / "mindrlhf_msprobe"
#: Names that look private and are none of MindSpore's: Python's, ours in texts, of other trainers.
OTHERS = {
    *("_getframe", "_initializing", "_grad", "_similarities", "_statistics"),
    *("_msprobe_tapped_by", "_mindrlhf_msprobe_of_training", "_msprobe_without_dropout"),
    *("_generate_old_logps", "_init_grpo_configs"),
    *("_create_callback_handler", "_last_triggered_step", "_save_checkpoint"),
}


@pytest.mark.parametrize("path", sorted((ROOT / "yaml_examples").glob("*.yaml")), ids=str)
def test_every_example_can_be_loaded(path):
    """Each file of yaml_examples holds a section that is accepted and switched on."""
    assert load_config(path).msprobe


def test_the_demo_reads_the_example_at_the_top_of_the_repository():
    """The demo's YAML is the one users see in yaml_examples."""
    assert example_path(EXAMPLE).read_bytes() == (ROOT / "yaml_examples" / EXAMPLE).read_bytes()


@pytest.mark.parametrize("readme", ["README.md", "README_CN.md"])
def test_the_readmes_have_the_two_commands(readme):
    """Both READMEs give one command line for the demo and one for the tests, the same ones."""
    commands = [
        line
        for line in (ROOT / readme).read_text(encoding="utf-8").splitlines()
        if line.startswith("python3.11 -m venv")
    ]
    assert len(commands) == 2
    assert commands[0].endswith("mindrlhf-msprobe demo --output demo_out")
    assert commands[1].endswith("python -m pytest -n 2 --dist loadfile")


@pytest.mark.parametrize("document", sorted(p.name for p in (ROOT / "docs" / "en").glob("*.md")))
def test_documents_are_in_both_languages(document):
    """Every English document has its Chinese mirror with as many headings, tables and blocks."""
    english = (ROOT / "docs" / "en" / document).read_text(encoding="utf-8")
    chinese = (ROOT / "docs" / "zh" / document).read_text(encoding="utf-8")
    for mark in ("\n#", "\n|", "\n```"):
        assert english.count(mark) == chinese.count(mark), mark


def test_the_tests_have_the_folders_of_the_package():
    """What tests a module is in its folder; what needs several has a folder that says so."""
    tests = ROOT / "tests"
    files = [*tests.rglob("test_*.py")]
    folders = {file.parent.relative_to(tests) for file in files}
    found = {path for path in folders if not (ROOT / "mindrlhf_msprobe" / path).is_dir()}
    assert {str(path) for path in found} == {
        "docs",
        "probe",  # the modules at the top of the package
        "promises",
        "promises/interop",
        "promises/ranks",
    }
    names = [file.name for file in files]
    assert len(names) == len(set(names)), "pytest needs file names that are unique"
    wrong = re.compile(r"^ *(?:from|import) (?:conftest|runs|small_networks|test_\w+)\b", re.M)
    assert [file for file in files if wrong.search(file.read_text("utf-8"))] == [
        tests / "report/test_staging.py"  # a program that it starts imports it
    ]


def is_private(name):
    """Return whether it begins with one underscore, or names what is inside a function."""
    return name == "<locals>" or (name.startswith("_") and name.strip("_") and name[1] != "_")


def own_names(but):
    """Yield every name that the package itself gives to anything, in all modules but one."""
    for module in {*PACKAGE.rglob("*.py")} - {but}:
        for node in ast.walk(ast.parse(module.read_text("utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                yield node.name
            elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
                yield node.id if isinstance(node, ast.Name) else node.attr
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                yield from (alias.asname or alias.name for alias in node.names)


def private_names(module, own):
    """Yield what a module takes of others that is not public: imports, attributes, texts."""
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [part for alias in node.names for part in alias.name.split(".")]
        elif isinstance(node, ast.ImportFrom):
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Attribute):
            names = [] if getattr(node.value, "id", "") in ("self", "cls") else [node.attr]
        elif isinstance(node, ast.Constant) and re.fullmatch(r"[\w.<>]+", str(node.value)):
            names = str(node.value).split(".")
        yield from (name for name in names if is_private(name) and name not in own)


def test_private_names_of_mindspore_are_in_one_module():
    """A version that names them otherwise is met in one place; nothing else asks for one."""
    one = PACKAGE / "capture/framework/private.py"
    own = {*own_names(one), *OTHERS} - {*private_names(one, OTHERS)}
    rooms = ("capture", "integrations", "demo", "compat", "probe.py")
    modules = (p for room in rooms for p in (PACKAGE / room, *(PACKAGE / room).rglob("*.py")))
    found = {p: {*private_names(p, own)} for p in modules if p.suffix and p != one}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(("readme", "most"), [("README.md", 600), ("README_CN.md", 2200)])
def test_the_readmes_are_short(readme, most):
    """The first minute, no more: under 600 English words, or as many letters as they take."""
    text = (ROOT / readme).read_text(encoding="utf-8")
    counted = len(text.split()) if readme == "README.md" else len(re.findall(r"[一-鿿]|\w+", text))
    assert counted < most


def test_pre_commit_and_make_run_what_ci_runs():
    """The lint session of noxfile.py, the Makefile and pre-commit have the same commands."""
    session = (ROOT / "noxfile.py").read_text(encoding="utf-8").partition("def lint(")[2]
    lines = re.findall(r"session\.run\((.*)\)", session.partition("\n\n\n")[0])
    wanted = {" ".join(ast.literal_eval(f"({line},)")) for line in lines}
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    hooks = {hook["entry"] for repo in config["repos"] for hook in repo["hooks"]}
    make = (ROOT / "Makefile").read_text(encoding="utf-8")
    lint = make.partition("\nlint:\n")[2].partition("\n\n")[0]
    assert wanted == {"ruff check .", "ruff format --check .", "mypy"}
    assert {hook.removeprefix("python -m ") for hook in hooks} == wanted
    assert {line.strip().removeprefix("$(PYTHON) -m ") for line in lint.splitlines()} == wanted


def test_entries_of_two_branches_in_the_changelog_do_not_conflict(tmp_path):
    """Two branches add an entry at the same place; after merging and rebasing both are there."""

    def git(*arguments):
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, timeout=60)

    def add(entry):
        text = (tmp_path / "CHANGELOG.md").read_text(encoding="utf-8")
        head, mark, rest = text.partition("\n- ")
        (tmp_path / "CHANGELOG.md").write_text(f"{head}\n- {entry}{mark}{rest}", encoding="utf-8")
        git("commit", "-qam", entry)

    git("init", "-q", "-b", "main")
    for name in (".gitattributes", "CHANGELOG.md"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    git("add", "-A")
    git("commit", "-qm", "start")
    git("checkout", "-qb", "other")
    add("Of the other branch.")
    git("checkout", "-q", "main")
    add("Of main.")
    git("checkout", "-q", "other")
    git("rebase", "-q", "main")
    text = (tmp_path / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "- Of main.\n" in text
    assert "- Of the other branch.\n" in text
    assert "<<<<" not in text


def test_a_comparison_knows_no_other_tool_by_name():
    """What is peculiar to one stands in its dialect; only its mapping files have own modules."""
    room = ROOT / "mindrlhf_msprobe" / "comparison"
    names = ["mindrlhf[_-]msprobe", "msprobe_(?:mapping|partners)", "msprobemapping"]
    own = "|".join([*names, "msprobe_config", '"msprobe"', "msprobe_float32_[a-z]+"])
    named = [
        str(path.relative_to(room))
        for path in room.rglob("*.py")
        if path.name not in ("msprobe_mapping.py", "msprobe_partners.py")
        if "msprobe" in re.sub(own, "", path.read_text(encoding="utf-8"), flags=re.I).lower()
    ]
    assert not named
