"""A format of another package is read where no other one knows the directory."""

from __future__ import annotations

from helpers.distributions import install, run_beside

FORMAT = """
from mindrlhf_msprobe.storage.foreign.dialect import Dialect, Format
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.place import KeyPlace
from mindrlhf_msprobe.storage.records import Record


class Lines(Format):
    dialect = Dialect("lines", timed=False, records_cells=False)

    def places(self, root, problem):
        if (root / "loss.txt").is_file():
            for step, _ in enumerate((root / "loss.txt").read_text().split()):
                yield KeyPlace("loss", step, 0, 0), root

    def key_data(self, root, directory, at):
        value = float((directory / "loss.txt").read_text().split()[at.step])
        return (Record("loss", "data", "", Leaf("float", value=value, dialect="lines")),)
"""


def test_a_format_of_another_package(tmp_path):
    """A line a step: compared in two workers; one that cannot be loaded is named."""
    install(tmp_path / "site", FORMAT, formats="lines = mine:Lines\nlost = mine:Nothing")
    for name, text in (("a", "1.0 2.0"), ("b", "1.0 2.5"), ("c", None)):
        (tmp_path / name).mkdir()
        if text is not None:
            (tmp_path / name / "loss.txt").write_text(text)
    a, b, c = (tmp_path / name for name in "abc")
    done = run_beside(tmp_path / "site", "compare", a, b, "--lang", "en", "--workers", "2")
    assert done.returncode == 1, done.stderr
    assert "DIVERGED at step 1" in done.stdout
    done = run_beside(tmp_path / "site", "show", c, "--lang", "en")
    assert done.returncode == 2
    assert "mine:Nothing cannot be loaded" in done.stderr
