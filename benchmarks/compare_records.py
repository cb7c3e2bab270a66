"""Time of comparing cell dumps of many tensors, beside `msprobe compare` on the same files.

    python benchmarks/compare_records.py --reference-python PATH [--records N] [--elements N]
        [--equal] [--rounds N] [--directory DIR]

Whole commands are timed, tables and the start of the interpreter included. The files were just
written, so both tools read them from the page cache; the best of the rounds counts.
"""

from __future__ import annotations

from pathlib import Path

from compare_common import arguments, best, command, tables, workspace, write_dumps


def reference(python: str, a: Path, b: Path, out: Path) -> list[str]:
    """Return the reference's command line; its launcher stands beside its interpreter."""
    launcher = Path(python).with_name("msprobe")
    sides = ["-tp", str(a / "step0"), "-gp", str(b / "step0")]
    return [python, str(launcher), "compare", *sides, "-o", str(out)]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--records", type=int, default=2000)
    parser.add_argument("--elements", type=int, default=65_536)
    parser.add_argument("--equal", action="store_true", help="compare equal pairs")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with workspace(options.directory) as root:
        write_dumps(root, options.records, options.elements, options.equal)
        a, b = root / "A", root / "B"
        ours = best([command(a, b, root / f"ours{i}") for i in range(options.rounds)])
        print(f"ours       {ours:8.2f} s, {tables(root / 'ours0')} tables")
        if options.reference_python:
            outs = [root / f"theirs{i}" for i in range(options.rounds)]
            theirs = best([reference(options.reference_python, a, b, out) for out in outs], (0,))
            print(f"reference  {theirs:8.2f} s, {tables(outs[0])} tables")
            print(f"ours takes 1/{theirs / ours:.1f} of the reference's time")


if __name__ == "__main__":
    main()
