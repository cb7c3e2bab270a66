"""Parameters of the texts of the demo."""

EXAMPLES = {
    "number": [
        {"place": "a.yaml: rl_config.lr", "value": "'x'", "usual": "0.001", "whole": whole}
        for whole in (True, False)
    ],
    "needs": [{"names": ["mindspore"]}, {"names": ["mindspore", "mindformers"]}],
    "never_ran": [
        {"cell": "mlp", "phase": "actor_update", "cells": cells} for cells in ([], ["a", "b"])
    ],
}
