"""Parameters of the texts of the log."""

EXAMPLES = {
    **{
        name: [{"root": "run", "step": 0, "what": ["1", "2"]}]
        for name in ("recording", "continuing")
    },
    "layers": [{"phases": ["actor_update", "critic_update"], "steps": "0"}],
    "steps_from": [{"first": 0}, {"first": 3}],
    "fault": [
        {"what": what, "step": 0, "kind": "TypeError", "error": "1"}
        for what in ("a tensor", "key data loss")
    ],
    "took": [{"step": 0, "size": "3 KiB", "parts": [["actor_update", "2 KiB"], ["a", "1 KiB"]]}],
    "texts": [{"what": ["1"], "left": 0}, {"what": ["1", "2"], "left": 3}],
    "left_out": [{"what": "the layers of actor_update", "why": ["1"]}],
    "operators_replaced": [{"operators": ["Mint.tanh (trainer.tanh)", "2"]}],
    "key_unknown": [{"key": "Rewards", "near": "rewards"}],
    "operators_held": [{"places": ["trainer.ACTIVATIONS['relu'] (Mint.relu)", "2"]}],
    "gap": [{"cell": "lm_head", "why": ["1", "2"]}],
    "gaps": [{"role": "actor", "cells": ["1", "2"]}],
    "lost": [{"lost": [["a tensor: TypeError", 3]], "noted": noted} for noted in (True, False)],
    "look_at": [{"what": ["include ['a']", "exclude ['b']"]}],
    "not_recorded_there": [{"root": "run", "shown": "a, b", "left": left} for left in (0, 4)],
    "no_trainer": [{"where": where, "known": "GRPOTrainer"} for where in ("", "<module>")],
    "other_version": [{"trainer": "MindRLHF", "missing": ["1", "2"]}],
    "one_network": [{"role": "actor", "other": "reference"}],
    "no_network": [{"phase": "actor_update", "role": "actor"}],
    "no_key_data": [{"keys": ["ratio", "log_prob"], "why": "1"}],
    "switched_off": [{"trainer": "MindRLHF", "keys": ["actor_update", "log_prob"], "why": "1"}],
}
