"""Parameters of what the checks of ranks say."""

_CALLS = {"rank": 1, "other": 0, "cells": 2, "count": 1, "usual": 2}
_WEIGHTS = {"rank": 1, "parameters": 3, "of": 6}

EXAMPLES = {
    "calls": [{"lacking": True, **_CALLS}, {"lacking": False, **_CALLS}],
    "no_phase": [{"ranks": [1], "phase": "actor_update"}],
    "missing": [{"ranks": [1, 3], "of": 2}],
    "setting": [{"section": "seeds", "name": "mindspore", "ranks": [1]}],
    "parted": [{"others": [0], **_WEIGHTS}, {"others": [0, 2], **_WEIGHTS}],
    "other_weights": [{"others": [0], **_WEIGHTS}, {"others": [0, 2], **_WEIGHTS}],
    "shapes": [{"rank": 1, "records": 1}],
}
