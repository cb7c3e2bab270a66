"""Elements per second of comparing key data, beside msprobe's SingleComparator on the same files.

    python benchmarks/compare_key_data.py --reference-python PATH [--pairs N] [--elements N]
        [--equal] [--rounds N] [--directory DIR]

Whole commands are timed, tables and the start of the interpreter included. The files were just
written, so both tools read them from the page cache; the best of the rounds counts.
"""

from __future__ import annotations

from compare_common import arguments, best, command, tables, workspace, write_key_data

REFERENCE = (
    "import sys\n"
    "from msprobe.core import SingleComparator\n"
    "if __name__ == '__main__':\n"
    "    SingleComparator.compare(*sys.argv[1:3], output_path=sys.argv[3], num_processes=8)\n"
)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--elements", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=8, help="keys the pairs are spread over")
    parser.add_argument("--equal", action="store_true", help="compare equal pairs")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    total = options.pairs * options.elements
    with workspace(options.directory) as root:
        write_key_data(root, options.pairs, options.elements, options.equal, options.keys)
        a, b = root / "A", root / "B"
        ours = best([command(a, b, root / f"ours{i}") for i in range(options.rounds)])
        print(
            f"ours       {ours:8.2f} s {total / ours / 1e6:9.1f} M elements/s, "
            f"{tables(root / 'ours0')} tables"
        )
        if options.reference_python:
            script = root / "reference.py"
            script.write_text(REFERENCE)
            start = [options.reference_python, str(script), str(a), str(b)]
            theirs = best([[*start, str(root / f"theirs{i}")] for i in range(options.rounds)], (0,))
            print(
                f"reference  {theirs:8.2f} s {total / theirs / 1e6:9.1f} M elements/s, "
                f"{tables(root / 'theirs0')} tables"
            )
            print(f"ours is {theirs / ours:.1f} times as fast")


if __name__ == "__main__":
    main()
