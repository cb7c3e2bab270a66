"""What cannot be recorded because this MindSpore lacks a private name."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text

TEXTS: dict[str, Text] = {
    "layers": "the cells inside a network: only the network itself is recorded",
    "parameters": "the parameters of cells",
    "own_bprop": "cells with a bprop of their own in PyNative mode",
    "recomputed": "recomputed cells: their second run is recorded as a call of its own",
    "gradients": "the gradients at a cell's inputs and outputs in PyNative mode",
    "casts": "values as they were before a cell's `to_float` cast them",
    "graphs": "graphs hold their probes in every step, and those of jit functions may be missing",
    "vectorised": "all calls in functions that MindSpore makes: by vmap, jacrev, jacfwd or grad",
    "recurrent": "all cells of MindSpore's own in graph mode, not only those of recurrent layers",
}
