"""Why a call was not computed a second time, in English."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text

TEXTS: dict[str, Text] = {
    "communicates": "{operator} exchanges data with other ranks",
    "in_place": "{operator} writes into a tensor that was there before",
    "no_attributes": "something stands in the place of {operator}, whose arguments are not known",
    "no_formula": "there is no formula for {operator}, called in this form, and no kernel on the "
    "CPU that computes in float64",
    "replaced": "something else stands in the place of {operator}, whose source is not known",
    "complex": "{operator} computes with complex numbers, for which there are no formulas",
    "random": "{operator} draws random numbers that cannot be drawn again",
    "compiled": "{cell} is compiled (ms.jit)",
    "raised": "the second computation raised {error}",
    "other_outputs": "the second computation returned {again} values, the first {first}",
    "own_bprop": "its library has a bprop for it, which need not be the gradient of its construct",
    "no_gradient": "the gradient of {operators} is not known",
    "gradients_unknown": "its gradients cannot be told apart from those of other calls",
    "unseen": "what it returned came from what was not seen to compute",
}
