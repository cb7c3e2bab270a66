"""How a graph writes a file on Ascend: `ops.TensorDump`.

Written from its documentation and source, and from how msprobe uses it; not yet run on Ascend.
"""

from __future__ import annotations

import mindspore
import numpy as np
from mindspore import Tensor, ops

from mindrlhf_msprobe.capture.framework.private import RUN_OP

#: Writes a tensor, in the order of the program: `dump(file, tensor)`.
dump = ops.TensorDump()

#: Writes a tensor from inside a gradient: whoever needs it waits for what is returned. With these
#: attributes MindSpore itself writes gradients, in the bprop of `ops.DumpGradient`.
dump_gradient = ops.TensorDump()
dump_gradient.add_prim_attr("side_effect_io", False)
dump_gradient.add_prim_attr("td_flag", True)

for _primitive in (dump, dump_gradient):
    _primitive.recompute(False)  # a recomputed cell hands over what it computed first


def write_now(path: str) -> None:
    """Write a mark behind everything that graphs have handed over.

    Called as an operator it takes the same way through the device as in a graph; as a Python
    function it would write at once.

    Raises:
        Exception: what the device met meanwhile.
    """
    mindspore.runtime.synchronize()
    RUN_OP(ops.TensorDump(), "TensorDump", (path, Tensor(np.zeros(1, np.int32))))
