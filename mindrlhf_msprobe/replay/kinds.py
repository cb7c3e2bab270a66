"""Which operators cannot simply run again: they draw, they write, or they speak to other ranks."""

from __future__ import annotations

import functools
import re

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_DRAW = frozenset(
    [
        *("dropout", "rand", "random", "randint", "randn", "randperm", "normal", "uniform"),
        *("bernoulli", "multinomial", "shuffle", "poisson", "gamma", "laplace", "exponential"),
        *("geometric", "cauchy", "sampler", "choice", "rrelu", "gumbel"),
    ]
)
_IN_PLACE = re.compile(
    r"[^_].*[^_]_$|^__setitem__$|^__i(add|sub|mul|truediv|floordiv|mod|pow|matmul|and|or|xor)__$"
)
_WRITE = re.compile(
    r"^[Aa]ssign|^[Ss]catter|^Sparse|^Apply|^Fused|^Inplace|^index_put|^Push"
    r"|[Bb]atch_?[Nn]orm|[Ii]nstance_?[Nn]orm|Cache|_cache$|^Accumulate"
)
_SPEAK = re.compile(
    r"^(AllReduce|AllGather|AllGatherV|ReduceScatter|ReduceScatterV|Broadcast|AlltoAll|AlltoAllV"
    r"|NeighborExchange|NeighborExchangeV2|CollectiveScatter|CollectiveGather|Barrier|Send|Receive"
    r"|Reduce|BatchISendIRecv)$|^_(All|Mirror|Virtual|Host|Reduce|MiniStep|GetTensor)"
    r"|^(DistComm|InnerComm)"
)
#: What moves elements, always in the same way.
_MOVE = frozenset(
    [
        *("pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "PixelShuffle", "PixelUnshuffle"),
        *("ChannelShuffle", "ShuffleChannel"),
    ]
)
#: Of what exchanges data, that which computes of it.
_REDUCE = re.compile(r"[Rr]educe|^_MirrorOperator|^_MiniStep")
#: What returns elements as they are given.
_COPY = frozenset(
    [
        *("copy", "clone", "identity", "Identity", "contiguous", "stop_gradient", "detach"),
        *("empty", "empty_like", "new_empty", "new_full", "new_ones", "new_zeros", "fill", "fills"),
    ]
)


@functools.lru_cache(maxsize=1 << 14)
def is_copy(kind: str, operator: str) -> bool:
    """Return whether an operator computes nothing of elements, by its kind and name."""
    if communicates(kind, operator):
        return _REDUCE.search(operator) is None
    return operator in _COPY


@functools.lru_cache(maxsize=1 << 14)
def draws(operator: str) -> bool:
    """Return whether an operator draws random numbers, by its name in MindSpore."""
    return operator not in _MOVE and any(word.lower() in _DRAW for word in _WORD.findall(operator))


@functools.lru_cache(maxsize=1 << 14)
def passes_gradients(operator: str) -> bool:
    """Return whether gradients may flow through an operator that draws."""
    words = {word.lower() for word in _WORD.findall(operator)}
    return not words & {"like", "bernoulli", "multinomial", "poisson", "randperm", "randint"}


@functools.lru_cache(maxsize=1 << 14)
def writes(operator: str) -> bool:
    """Return whether an operator may write into what it is given, by its name in MindSpore."""
    return in_place(operator) or _WRITE.search(operator) is not None


@functools.lru_cache(maxsize=1 << 14)
def in_place(operator: str) -> bool:
    """Return whether an operator writes into its first argument, and is called accordingly."""
    return _IN_PLACE.search(operator) is not None


def out_of_place(operator: str) -> str:
    """Return the operator that computes what one that is `in_place` writes."""
    if operator == "__setitem__":
        return operator
    return f"__{operator[3:]}" if operator.startswith("__") else operator[:-1]


@functools.lru_cache(maxsize=1 << 14)
def is_norm(operator: str) -> bool:
    """Return whether an operator writes averages, and nothing that is trained."""
    return "orm" in operator and writes(operator)


@functools.lru_cache(maxsize=1 << 14)
def communicates(kind: str, operator: str) -> bool:
    """Return whether an operator exchanges data with other ranks, by its kind and name."""
    if kind in ("Distributed", "MintDistributed"):
        return True
    return kind == "Primitive" and _SPEAK.search(operator) is not None
