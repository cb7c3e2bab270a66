"""What differs before any tensor and may explain a divergence."""

AGREE = [
    {"role": "actor", "networks": 1, "parameters": 1},
    {"role": None, "networks": 2, "parameters": 30},
]
VALUES = [{"a": "1", "b": None}]
EXAMPLES = {
    "weights_agree": AGREE,
    "weights_agree_but": [{**agree, "but": "x"} for agree in AGREE],
    "only_random": AGREE,
    "no_setting": AGREE,
    "weights_differ": [{"role": "actor", "different": 1, "compared": 2, "first": "w"}],
    "sentence": [{"what": "the seed"}],
    "seed": [{"name": name, **values} for name in ("mindspore", "numpy") for values in VALUES],
    "generator": [{"whose": "numpy", "step": None}, {"whose": "numpy", "step": 2}],
    "determinism": [{"name": "x", **values} for values in VALUES],
    "settings": [
        {"count": count, "section": "device", "name": "mode", "a": None, "b": "y"}
        for count in (1, 3)
    ],
}
