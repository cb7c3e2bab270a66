"""What of two runs could not be compared before any tensor."""

SOME = [{"names": ["x"], "more": 0}, {"names": ["x", "y"], "more": 3}]
NAME = {"setting": "actor.lr", "more": 0, "kind": "", "phases": [], "of_phase": False}
NAME.update(step=7, ranks=[])
EXAMPLES = {
    "sections": [{"names": ["networks", "generation_settings"]}],
    "section": [{"name": "seeds"}, {"name": "versions"}],
    "only_one_side": [
        {"side": "A", "names": ["networks"], "more": 0},
        {"side": "B", "names": ["initial_weights", "generation_settings"], "more": 0},
    ],
    "name": [
        {**NAME, **some}
        for some in (
            {"step": 2, "ranks": [1, 2]},
            {"setting": "", "ranks": [*range(20)]},
            {"more": 1, "phases": ["actor_update"], "of_phase": True},
            {"setting": "", "phases": ["actor_update", "critic_update"], "of_phase": True},
            {"more": 3, "kind": "Dense", "phases": ["actor_update"]},
        )
    ],
    "only_in": [{"section": "modes", "side": "A", **some} for some in SOME],
    "neither": [{"names": ["world", "initial_weights"]}],
    "ranks_alone": [{"side": "A", "ranks": [1, 2], "more": 3}],
    "no_manifest": [
        {"sides": ["A"], "ranks": [], "more": 0},
        {"sides": ["A", "B"], "ranks": [0], "more": 0},
    ],
    "configurations_unread": [{"file": "configurations.json", "sides": ["A", "B"]}],
    "early_seed": SOME,
    "resumed": [{"side": "B", "step": 2, "optimizer": "actor.Adam", "count": 0, "against": 2}],
    "not_restored": [{"side": "B", "step": 2, "optimizer": "actor.Adam", "count": 0, "began": 0}],
    "attempt": [{"number": 2, "side": "A", "sections": ["versions", "device"]}],
    "key_data_left_out": [{"why": "x", **some} for some in SOME],
    "more_differences": [{"section": "environment", "count": 3}],
    "nested": [{"section": "configurations", "levels": 64}],
    "withheld": [{"section": "environment", **some} for some in SOME],
    "incomplete_calls": [*SOME],
    "incomplete_seeds": [*SOME],
    "of_pack": [*SOME],
    "opaque_data": [*SOME],
    "parameters_of_one": [*SOME],
    "weights_only_in": [{"side": "B", **some} for some in SOME],
}
