"""Training against inference."""

PHASES = {"rollout": "actor_generate_sequences", "training": "actor_compute_log_prob"}
WEIGHT = {"name": "w", "parts": [], "count": 1, "relative": None, "since": None, "stale": None}
ROWS = {"born": 3, "rows": 9, "samples": 1}
EXAMPLES = {
    "weights": [
        WEIGHT,
        {**WEIGHT, "parts": ["q", "k", "v"], "count": 3, "relative": 0.01, "since": 2, "stale": 1},
    ],
    "non_finite": [
        {"cell": "wo", "sides": sides} for sides in (["rollout"], ["rollout", "training"])
    ],
    "numbers": [
        {
            **{"cell": "wpe", "value": "wpe input.0", "rollout": 3, "training": 1},
            **{"sample": 0, "position": 6},
        }
    ],
    "positions": [{"given": 9, "right": 8, "position": 8, "sample": 0, "call": 1}],
    "lower_dtype": [{"cell": "lm_head", "rollout": "bfloat16", "training": "float32"}],
    "gradual": [{"cell": "norm"}],
    "computation": [{"cell": "lm_head"}],
    "computation_or_given": [{"cell": "core", "values": ["core input.0"]}],
    "beyond_rounding": [
        {
            **{
                "name": "layers.1.wo input.0",
                "cell": "layers.1.wo",
                "io": io,
                "around": "layers.1",
            },
            **{"growth": 12.3, "usual": 1.25, "dtype": "bfloat16"},
        }
        for io in ("input", "output")
    ],
    "handed_on": [
        {"cell": "attention.wo", "around": "attention", "rounded": rounded, "left": left}
        for rounded in (False, True)
        for left in (0, 2)
    ],
    "rows": [
        {"where": where, "of_samples": count, **ROWS}
        for where in ("all", "prompt", "decode", "some")
        for count in (1, 8)
    ]
    + [{"where": "some", "of_samples": 8, "padded": True, **ROWS}],
    "other_count": [
        {"rollout": 2, "training": training, "sample": 0, "count": 1, "of": 8}
        for training in (None, 4)
    ],
    "also_temperature": [{"rollout": 0.7, "training": other} for other in (None, 1.0)],
    "shifted": [{"by": by} for by in (1, -2)],
    "from_borders_on": [{"size": 16}],
    "unseen": [{"cell": "attention", "values": ["a"] * count} for count in (1, 6)],
    "returned": [{"cell": "freqs_mgr"}],
    "no_sequences": [{"phase": "actor_generate_sequences"}],
    "unread": [{"values": ["a"] * count} for count in (1, 6)],
    "other_tokens": [
        {"sample": 1, "position": 4, "rollout": 5, "training": 6, "count": 2, "of": 8}
    ],
    "log_prob_not_finite": [
        {"row": 1, "place": 4, "rollout": float("nan"), "training": -1.5, "count": count}
        for count in (1, 3)
    ],
    "rows_exchanged": [{"row": 0, "other": 2, "count": 2}],
    "log_probs_shifted": [{"by": by} for by in (1, -1)],
    "other_response": [
        {"sample": 1, "position": 4, "saved": 5, "training": 6, "count": 2, "of": 8}
    ],
    "worst_sampled": [
        {"row": 1, "place": 4, "id": known, "rollout": -1.0, "training": -2.5}
        for known in (None, 7)
    ],
    "few_aligned": [{"rows": 3, "tokens": 9}],
    "few_saved": [{"rows": 3, "tokens": 9}],
    "log_probs_apart": [{"mean": 0.1}],
    "temperature": [{"rollout": 0.7, "training": 1.0, "mean": 0.1}],
    "sampling": [{"mean": 0.1}],
    "fused_form": [{"path": "m.yaml", "source": "qkv", "target": "3"}],
    "lets_in": [
        {"name": "mask", "rows": rows, "side": side, "kind": kind}
        for rows, side in ((1, "rollout"), (3, "training"))
        for kind in ("padding", "later", "others", "hidden")
    ],
    "mask_or_scores": [{}],
    "mask_convention": [{}],
    "packed_mask": [{}],
    "shared_mask": [{}],
    "shown_step": [{"step": 3, "rank": 1}],
    "keys_not_stored": [{}],
    "keys_or_features": [{}],
    "heads": [{"rollout": 4, "training": 2}],
    "no_layout": [{}],
    "no_rows": [{}],
    "no_sums": [{}],
    "fused_sketch": [{}],
    "columns": [{"rollout": 8, "training": 9}],
    "kind": [{"dtype": "String"}],
    "unaligned": [{"phase": "actor_update", "why": "x"}],
    "nothing_compared": [{}],
    "no_common_tokens": [{"rollout": "[1]", "training": "[2]"}],
    "no_metrics": [{"why": "x"}],
    "no_phase": [
        {"run": "run", "phase": "a", "known": "b", "hint": "", **why}
        for why in ({}, {"switch": "actor_infer_dump"}, {"first": 50})
    ],
    "no_rank": [{**PHASES, "a": "0-1", "b": "2-3"}],
    "ranks": [{"step": 1}],
    "of_rank": [
        {"rank": 0, "status": status, "name": name, "cause": "weights" if name else ""}
        for status, name in (
            *(("identical", ""), ("within_rounding", ""), ("undecided", "")),
            ("parted", "lm_head output.0"),
        )
    ],
    "no_step": [{**PHASES, "a": "0-2", "b": "3"}],
    "step": [{"step": 3, "there": "0-2"}],
    "headline_identical": [PHASES],
    "headline_within_rounding": [PHASES],
    "headline_parted": [{**PHASES, "step": 1, "rank": 0}],
    "headline_undecided": [PHASES],
    "cause": [{"cause": "weights"}],
    "apart": [{"apart": 0.1, "most": 0.2, "entered": 0.0, "allowed": 1e-6}],
    "worst": [{"sample": 0, "position": 4, "role": "prompt", "id": 3, "text": ""}],
    "role_prompt": [{}],
    "role_padding": [{}],
    "role_first": [{}],
    "role_block": [{}],
    "role_response": [{}],
    "text": [{"text": "1+1="}],
    "births": [{}],
    "birth": [{"name": "norm output.0", "apart": 0.1, "entered": 0.0}],
    "grows": [{}],
    "weights_differ": [{"different": 1, "compared": 3}],
    "weights_agree": [{"compared": 3}],
    "weights_unknown": [{"count": 2, "names": "a, b"}],
    "reordered": [
        {"count": 1, "call": 3, "row": 0, "sample": 2, "left": 0},
        {"count": 30, "call": 3, "row": 0, "sample": -1, "left": 1},
    ],
    "reordered_or_wrong": [{"count": 30, "call": 3, "row": 0, "sample": 2, "left": 4}],
    "weights_some_agree": [{"compared": 3, "of": 5}],
    "weights_alone": [
        {"rollout": ["head.w", "head.b"], "training": ["head.part0.w"]},
        {"rollout": [], "training": ["a", "b", "c", "d"]},
    ],
    "weights_undecided": [{"cell": "head", "names": ["head.w", "head.b"]}],
    "rounded_weights": [
        {"name": "head.w", "count": 1, "dtypes": ["float16"]},
        {"name": "head.w", "count": 5, "dtypes": ["bfloat16", "float16"]},
    ],
    "mapping_no_cell": [{"source": "haed", "example": "layers.0.attn", "hint": ""}],
    "mapping_no_part": [{"source": "head", "what": "cell", "part": "head.a", "hint": ""}],
    "mapping_shapes": [
        {"source": "head", "cell": "head", "shape": [4, 8], "parts": ["a [4, 3]", "b [4, 4]"]}
    ],
    "metrics": [{}],
    "steps": [{"agree": 1, "parted": 0, "undecided": 2}],
    "scope": [{"rows": 5, "tokens": 6, "values": 3, "left": 1}],
    "note": [{"note": "x"}],
    "written": [{"files": "out/mismatch.xlsx"}],
    "one_or_two_runs": [{"runs": "a, b, c"}],
    "a_step": [{}],
    "more": [{"count": 3}],
}
