"""Write the dumps of this directory: MindSpore 2.7 on CPU, with its own Dump.

`python make.py` runs itself once for each sample, because MindSpore reads its configuration when it
is imported, and keeps what `open_run` reads. `b` learns twice as fast as `a`.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
LEARNING_RATES = {"a": 0.1, "b": 0.2}


def train(learning_rate):
    import mindspore as ms
    import numpy as np
    from mindspore import Tensor, nn

    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("CPU")

    def weight(*shape):
        return Tensor(np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape))

    net = nn.SequentialCell(
        nn.Dense(4, 3, weight_init=weight(3, 4), bias_init="zeros"),
        nn.ReLU(),
        nn.Dense(3, 2, weight_init=weight(2, 3), bias_init="zeros"),
    )
    optimizer = nn.SGD(net.trainable_params(), learning_rate)
    step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer)
    step.set_train()
    for _ in range(2):
        step(weight(2, 4), weight(2, 2))


def main():
    for name, learning_rate in LEARNING_RATES.items():
        with tempfile.TemporaryDirectory() as work:
            config = Path(work) / "dump.json"
            common = {
                "op_debug_mode": 0,
                "dump_mode": 1,
                "path": f"{work}/out",
                "net_name": "Tiny",
                "iteration": "all",
                "saved_data": "tensor",
                "input_output": 0,
                "kernels": ["MatMul", "ReLU"],
                "support_device": [0],
            }
            e2e = {"enable": True, "trans_flag": True}
            config.write_text(
                json.dumps({"common_dump_settings": common, "e2e_dump_settings": e2e})
            )
            command = [sys.executable, __file__, str(learning_rate)]
            variables = {**os.environ, "MINDSPORE_DUMP_CONFIG": str(config)}
            subprocess.run(command, env=variables, check=True)
            shutil.rmtree(HERE / name, ignore_errors=True)
            kept = HERE / name / "rank_0"
            shutil.copytree(Path(work) / "out" / "rank_0" / "Tiny", kept / "Tiny")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(float(sys.argv[1]))
    else:
        main()
