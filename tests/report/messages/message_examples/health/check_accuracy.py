"""Parameters of the texts of accuracy."""

_WRONG = {
    "call": "Functional.softmax.forward",
    "cell": "layers.0",
    "tensor": "output.0",
    "precision": "float32",
    "error": 2e-4,
    "explained": 1e-7,
}

EXAMPLES = {
    "no_opinion": [{"name": "Mint.erfinv.forward @ layers.0"}],
    "wrong": [
        {**_WRONG, "reason": ""},
        {**_WRONG, "cell": "", "reason": "not_finite"},
        {**_WRONG, "call": "Cell.layers.0.Dense.backward", "reason": "shape"},
    ],
}
