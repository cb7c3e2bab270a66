"""What cannot be recorded because this MindSpore lacks a private name, in Chinese."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text

TEXTS: dict[str, Text] = {
    "layers": "网络内部的 Cell：只采集网络本身",
    "parameters": "Cell 的权重",
    "own_bprop": "动态图（PyNative）模式下自定义 bprop 的 Cell",
    "recomputed": "重计算的 Cell：第二次执行会被当作一次单独的调用",
    "gradients": "动态图（PyNative）模式下 Cell 输入、输出处的梯度",
    "casts": "经 `to_float` 转换前的数值",
    "graphs": "图中的探针在每个 step 都存在，jit 函数内的 Cell 可能缺失",
    "vectorised": "由 vmap、jacrev、jacfwd、grad 生成的函数中的所有调用",
    "recurrent": "静态图模式下 MindSpore 以下划线开头的所有 Cell，不只是循环层中的",
}
