"""The rules of this package, one file an area; `MODULES` names those that hold some."""

#: The modules whose rules run, in the order in which they are listed.
MODULES = (
    "non_finite",
    "ranks",
    "policy",
    "responses",
    "weights",
    "history",
    "healthy",
    "computed_again",
)
