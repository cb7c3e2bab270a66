"""Elements per second of comparing key data, beside msprobe's SingleComparator on the same files.

    python benchmarks/compare_key_data.py --reference-python PATH [--pairs N] [--elements N]
        [--keys N] [--equal] [--rounds N] [--directory DIR]

Whole commands are timed, tables and the start of the interpreter included, once with all pairs and
once with one pair a key; from the difference comes what each further element takes. The files were
just written, so both tools read them from the page cache; the best of the rounds counts.
"""

from __future__ import annotations

from pathlib import Path

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
    counts = options.keys, options.pairs
    with workspace(options.directory) as root:
        for pairs in counts:
            write_key_data(root / str(pairs), pairs, options.elements, options.equal, options.keys)
        script = root / "reference.py"
        script.write_text(REFERENCE)

        def line(tool: str, pairs: int, number: int) -> list[str]:
            where = root / str(pairs)
            a, b, out = where / "A", where / "B", where / f"{tool}{number}"
            if tool == "ours":
                return command(a, b, out)
            return [options.reference_python, str(script), str(a), str(b), str(out)]

        def measure(tool: str, accepted: tuple[int, ...]) -> tuple[float, float]:
            few, all_pairs = (
                best([line(tool, pairs, i) for i in range(options.rounds)], accepted)
                for pairs in counts
            )
            further = (options.pairs - options.keys) * options.elements / (all_pairs - few)
            rate = options.pairs * options.elements / all_pairs
            made = tables(Path(root / str(options.pairs) / f"{tool}0"))
            print(
                f"{tool:10s} {all_pairs:6.2f} s {rate / 1e6:8.1f} M elements/s, each further pair "
                f"{further / 1e6:8.1f} M elements/s, {made} tables"
            )
            return rate, further

        ours = measure("ours", (0, 1))
        if options.reference_python:
            theirs = measure("reference", (0,))
            print(
                f"ours is {ours[0] / theirs[0]:.1f} times as fast, "
                f"{ours[1] / theirs[1]:.1f} times with each further pair"
            )


if __name__ == "__main__":
    main()
