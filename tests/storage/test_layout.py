"""Paths and names: nothing leaves its directory, and no two records share a file."""

from __future__ import annotations

import pytest

from mindrlhf_msprobe.storage import layout


@pytest.mark.parametrize(
    "stem", ["a/b", "../x", ".hidden", "x" * 400, "答" * 200, "a\0b", "\udc80", "a\nb", "👍" * 90]
)
def test_file_names_are_safe_and_short_enough(stem):
    """Any record's name becomes one file name that leaves no directory and fits the disk."""
    name = layout.file_name(stem)
    assert "/" not in name
    assert not name.startswith(".")
    assert name.isprintable()
    assert len(name.encode()) + 24 <= layout.MAX_NAME_BYTES
    assert name.endswith(".npy")


def test_names_that_had_to_be_changed_stay_apart():
    """Two records whose names become alike still have two files."""
    stems = ["a/b", "a\\b", "a_b", "x" * 400, "x" * 401, "." + "x" * 400]
    assert len({layout.file_name(stem) for stem in stems}) == len(stems)


def test_ordinary_names_are_kept():
    """msprobe's tools find `<record>.npy` under the record's own name."""
    assert layout.file_name("Cell.a.Dense.forward.0.output.0") == (
        "Cell.a.Dense.forward.0.output.0.npy"
    )


def ranks(tmp_path, *names):
    for name in names:
        (tmp_path / name).mkdir()
    return {n: p.name for n, p in layout.rank_directories(tmp_path).items()}


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("rank10", "rank2", "notes"), {2: "rank2", 10: "rank10"}),
        (("rank",), {0: "rank"}),  # msprobe's, of a single process
        (("proc99", "proc1000"), {0: "proc99", 1: "proc1000"}),
    ],
)
def test_rank_directories_of_every_layout_are_found(tmp_path, names, found):
    """`rank<N>` is rank N, whatever order the names sort in; processes are counted by their ids."""
    assert ranks(tmp_path, *names) == found


def test_no_rank_directory_is_left_out(tmp_path):
    """Where two directories are the same rank, the second gets the next free number."""
    found = ranks(tmp_path, "rank0", "rank", "rank00", "proc7", "rank2")
    assert sorted(found.values()) == ["proc7", "rank", "rank0", "rank00", "rank2"]
    assert (found[0], found[2]) == ("rank0", "rank2")


def test_a_circle_of_links_is_not_inside(tmp_path):
    """Symbolic links that lead in a circle lead nowhere."""
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert not layout.inside(tmp_path / "x", tmp_path / "a")
