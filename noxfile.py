"""What is run before a change is taken: `nox` for all of it, `nox -s tests-2.10` for one part.

Every session makes the environment it needs, below .nox; `nox -R` uses it again.
"""

from __future__ import annotations

import os
from pathlib import Path

import nox

nox.needs_version = ">=2024.4.15"
nox.options.error_on_missing_interpreters = True

PYTHON = "3.11"

#: MindFormers 1.6.0 asks for MindSpore 2.7. It works with 2.10 if it is installed without its
#: dependencies, these being what it imports (pyarrow and the like: the last that take numpy 1).
MINDSPORE_2_10 = ["mindspore==2.10.0", "numpy>=1.26,<2"]
MINDFORMERS = "mindformers==1.6.0"
MINDFORMERS_IMPORTS = [
    "deprecated",
    "jieba",
    "mindpet==1.0.4",
    "nltk==3.9.1",
    "pyarrow==19.0.0",
    "rouge_chinese",
    "sentencepiece>=0.2.0",
    "tensorboardX",
    "tiktoken",
    "tokenizers==0.21.0",
    "transformers==4.51.3",
]

#: MindFormers 2.0 asks for hyper-parallel, which is on no package index: the tests stand in for it.
MINDFORMERS_2 = "mindformers==2.0.0"
MINDFORMERS_2_IMPORTS = [
    *("astunparse", "datasets>=4.0.0", "deprecated", "jieba", "jinja2", "mindpet==1.0.4"),
    *("nltk==3.9.1", "pyarrow==23.0.1", "regex", "rouge_chinese", "safetensors", "tqdm"),
    *("sentencepiece>=0.2.1", "tensorboardX", "tiktoken", "transformers==4.57.1"),
]

#: As in the extra `test`, which would bring another MindSpore.
TEST_TOOLS = ["pytest>=8", "pytest-xdist>=3.5", "hypothesis>=6", "playwright>=1.40"]

#: A file stays in one worker: its tests share what they train.
TWO_WORKERS = ["-n", "2", "--dist", "loadfile"]
#: Of pytest: the tests marked as slow are run as well.
SLOW_TOO = ("-m", "")

#: The tests in which MindSpore runs. All others are about files, and the same on every version.
RUN_MINDSPORE = [
    *(f"tests/{room}" for room in ("capture", "compat", "demo", "integrations", "live", "probe")),
    *("tests/promises", "tests/replay"),
    "tests/comparison/mismatch/test_incremental_inference.py",
    "tests/comparison/verdict/test_operators_of_the_demo.py",
]

#: Those that are skipped on MindFormers 1.6.
RUN_MINDFORMERS_2 = ["tests/integrations/test_mindformers_pynative_real.py", "-rs"]

#: msprobe works with older versions of what it depends on than pip would choose.
REFERENCES = {
    "MSPROBE_REFERENCE_PYTHON": "mindstudio-probe==26.2.0",
    "MSPROBE_REFERENCE_8_PYTHON": "mindstudio-probe==8.3.3",
}
REFERENCE_NEEDS = ["mindspore==2.7.0", "numpy>=1.26,<2", "ml_dtypes<0.6", "onnx<1.20", "pandas<3"]


@nox.session(python=PYTHON)
def lint(session: nox.Session) -> None:
    """Format, style and types."""
    session.install("-e", ".[lint]")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")


@nox.session(name="tests-2.7", python=PYTHON)
def tests_2_7(session: nox.Session) -> None:
    """Run the tests on MindSpore 2.7, the version of the extra `demo`."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "pytest", *TWO_WORKERS, *session.posargs)


@nox.session(name="tests-2.10", python=PYTHON)
def tests_2_10(session: nox.Session) -> None:
    """Run the tests in which MindSpore runs on MindSpore 2.10, with the same MindFormers."""
    session.install(
        *(*MINDSPORE_2_10, *MINDFORMERS_IMPORTS, *TEST_TOOLS), *("-e", ".[ray,report,tokenizer]")
    )
    session.install("--no-deps", MINDFORMERS)
    session.run("python", "-m", "pytest", *TWO_WORKERS, *(session.posargs or RUN_MINDSPORE))


@nox.session(name="tests-mindformers-2", python=PYTHON)
def tests_mindformers_2(session: nox.Session) -> None:
    """Run the tests of MindFormers' Trainer in PyNative mode, which came after 1.6."""
    session.install(*MINDSPORE_2_10, *MINDFORMERS_2_IMPORTS, *TEST_TOOLS, "-e", ".")
    session.install("--no-deps", MINDFORMERS_2)
    session.run("python", "-m", "pytest", *SLOW_TOO, *(session.posargs or RUN_MINDFORMERS_2))


@nox.session(python=PYTHON)
def interop(session: nox.Session) -> None:
    """Run the real msprobe, in environments of its own, on our files and ours on its files."""
    session.install("mindspore==2.7.0", "numpy>=1.26,<2", *TEST_TOOLS, "-e", ".")
    interpreters = {}
    for variable, msprobe in REFERENCES.items():
        # msprobe refuses to read files whose path has a = in it.
        name = msprobe.replace("==", "-")
        home = Path(session.virtualenv.location) / "references" / name
        python = home / "bin" / "python"
        if not python.exists():
            session.run("python", "-m", "venv", os.fspath(home))
            # What the session has, gigabytes of MindSpore, is there once; pip sees it, and puts
            # beside msprobe what that needs in other versions.
            shared = next(Path(session.virtualenv.location).glob("lib/python*/site-packages"))
            own = next(home.glob("lib/python*/site-packages"))
            (own / "session.pth").write_text(f"{shared.resolve()}\n", encoding="utf-8")
            session.run(
                *(os.fspath(python), "-m", "pip", "install", "--quiet"),
                *(msprobe, *REFERENCE_NEEDS),
                external=True,
            )
        interpreters[variable] = os.fspath(python)
    session.run(
        *("python", "-m", "pytest", *SLOW_TOO, "tests/promises/interop", *session.posargs),
        env=interpreters,
    )
