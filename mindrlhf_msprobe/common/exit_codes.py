"""Exit codes: what a command looked for is well, is not, or could not be decided."""

SAME, DIVERGED, UNDECIDED = 0, 1, 2
