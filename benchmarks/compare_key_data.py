"""Elements per second of comparing key data, beside msprobe's SingleComparator on the same files.

    python benchmarks/compare_key_data.py --reference-python PATH [--pairs N] [--elements N]
        [--keys N] [--equal] [--rounds N] [--directory DIR]

Timed are whole commands, tables and the start of the interpreter included; what each further pair
adds to them, from a command with one pair a key; and single calls of compare_runs(…) and of
SingleComparator.compare(…), tables included, in a process that has imported what they need. The
files were just written, so both tools read them from the page cache; the best round counts.
"""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import NamedTuple

from compare_common import arguments, best, command, tables, workspace, write_key_data

#: Scripts that compare their arguments A and B into OUT, and write the seconds into a fourth.
OURS = """
import sys, time
from mindrlhf_msprobe import compare_runs
import mindrlhf_msprobe.report.summary, mindrlhf_msprobe.report.workbook
if __name__ == '__main__':
    began = time.perf_counter()
    compare_runs(*sys.argv[1:3], output_path=sys.argv[3])
    open(sys.argv[4], 'w').write(str(time.perf_counter() - began))
"""
REFERENCE = """
import sys, time
from msprobe.core import SingleComparator
if __name__ == '__main__':
    began = time.perf_counter()
    SingleComparator.compare(*sys.argv[1:3], output_path=sys.argv[3], num_processes=8)
    open(sys.argv[4], 'w').write(str(time.perf_counter() - began))
"""


class Rates(NamedTuple):
    """Elements a second: of a whole command, of each further pair, of a call."""

    command: float
    further: float
    call: float


class Tool:
    """One of the two tools.

    Args:
        name: of its output.
        python: the interpreter of its environment.
        script: compares by a call and notes how long that took.
    """

    def __init__(self, name: str, python: str, script: str, root: Path) -> None:
        self.name, self._python, self._root = name, python, root
        self._script = root / f"{name}.py"
        self._script.write_text(script)
        self._noted = root / f"{name}.seconds"

    def line(self, pairs: int, number: int | str) -> list[str]:
        where = self._root / str(pairs)
        a, b, out = where / "A", where / "B", where / f"{self.name}{number}"
        if self.name == "ours":
            return command(a, b, out)
        return self._script_line(pairs, number)

    def _script_line(self, pairs: int, number: int | str) -> list[str]:
        where = self._root / str(pairs)
        paths = (self._script, where / "A", where / "B", where / f"{self.name}{number}")
        return [self._python, *map(str, paths), str(self._noted)]

    def call(self, pairs: int, number: int) -> float:
        """Return the seconds of one call."""
        line = self._script_line(pairs, f"_call{number}")
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return float(self._noted.read_text())

    def measure(self, options: Namespace) -> Rates:
        """Time the tool, show what came out, and return it."""
        few, whole = (
            best([self.line(pairs, i) for i in range(options.rounds)], (0, 1))
            for pairs in (options.keys, options.pairs)
        )
        call = min(self.call(options.pairs, i) for i in range(options.rounds))
        elements = options.pairs * options.elements
        further = (options.pairs - options.keys) * options.elements / (whole - few)
        rates = Rates(elements / whole, further, elements / call)
        made = tables(self._root / str(options.pairs) / f"{self.name}0")
        print(
            f"{self.name:10s} command {whole:5.2f} s, call {call:5.2f} s; M elements/s: command "
            f"{rates.command / 1e6:.1f}, each further pair {rates.further / 1e6:.1f}, call "
            f"{rates.call / 1e6:.1f}; {made} tables"
        )
        return rates


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--elements", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=8, help="keys the pairs are spread over")
    parser.add_argument("--equal", action="store_true", help="compare equal pairs")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with workspace(options.directory) as root:
        for pairs in (options.keys, options.pairs):
            write_key_data(root / str(pairs), pairs, options.elements, options.equal, options.keys)
        ours = Tool("ours", sys.executable, OURS, root).measure(options)
        if options.reference_python:
            tool = Tool("reference", options.reference_python, REFERENCE, root)
            theirs = tool.measure(options)
            times = [a / b for a, b in zip(ours, theirs)]
            print(
                f"ours is {times[0]:.1f} times as fast, {times[1]:.1f} times with each further "
                f"pair, {times[2]:.1f} times from call to call"
            )


if __name__ == "__main__":
    main()
