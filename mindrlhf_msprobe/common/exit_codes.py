"""Exit codes: what a command looked for is well, is not, or could not be decided."""

SAME, DIVERGED, UNDECIDED = 0, 1, 2

#: What `git bisect run` takes for: this commit cannot be tested.
BISECT_SKIPS = 125
