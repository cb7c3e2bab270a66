"""Training against inference."""

PHASES = {"rollout": "actor_generate_sequences", "training": "actor_compute_log_prob"}
WEIGHT = {"name": "w", "parts": [], "count": 1, "relative": None, "since": None, "stale": None}
EXACT = {"sampled": 9, "aligned": 8, "compared": 9, "unequal": 1, "non_finite": 0, "weights": 15}
EXACT |= {"weights_different": 0, "weights_unknown": 1}
ROUTER = {"cell": "layers.0.moe", "tokens": 56, "others": 3}
ROWS = {"born": 3, "rows": 9, "samples": 1}
MERGED = {"name": "q.weight", "names": ["q.lora_b", "q.lora_a"], "of_training": True}
EXAMPLES = {
    "merged": [
        {**MERGED, "factor": factor, "count": count}
        for factor in (2.0, None)
        for count in (1, 2, 6)
    ],
    "merged_otherwise": [{"cell": "q", **MERGED, "of_training": False, "factor": 0.5}],
    "weights": [
        WEIGHT,
        {**WEIGHT, "parts": ["q", "k", "v"], "count": 3, "relative": 0.01, "since": 2, "stale": 1},
        {**WEIGHT, "stale": 1, "call": 3, "token": 2, "brought": True},
        {**WEIGHT, "call": 3, "token": None, "brought": False},
        {**WEIGHT, "relative": 0.4, "lacks": ["q.lora_a", "q.lora_b"]},
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
        {"sample": 1, "position": 4, "rollout": 5, "training": 6, "count": 2, "of": 8, "packed": p}
        for p in (False, True)
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
    "few_sampled": [{"rows": 3, "tokens": 9}],
    "logits_unknown": [{"count": 0, "of": 9}],
    "pad_unknown": [{"pad": 0}],
    "leak": [{"side": "training", "rows": 1}, {"side": "rollout", "rows": 7}],
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
        for why in ({}, {"switch": "actor_infer_dump"}, {"first": 50}, {"known": ""})
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
    "headline_exact": [{}],
    "headline_not_exact": [{}],
    "exact_counts": [EXACT],
    "exact_place": [{"step": 1, "rank": 0, "counts": "3 of 4"}],
    "exact_lacks": [{"step": 1, "rank": 0, "phases": "actor_update"}],
    "exact_apart": [{"step": 1, "rank": 0, "status": "parted"}],
    "exact_phases": [{"phases": "actor_update, b"}],
    "missing_ranks": [{"run": "run", "ranks": "1-2, 5"}],
    "not_completed": [{"run": "run", "steps": "3"}],
    "cause": [{"cause": "weights"}],
    "apart": [{"apart": 0.1, "most": 0.2, "entered": 0.0, "allowed": 1e-6}],
    "worst": [{"sample": 0, "position": 4, "role": "prompt", "id": 3, "text": ""}],
    "role_prompt": [{}],
    "role_padding": [{}],
    "role_first": [{}],
    "role_block": [{}],
    "role_response": [{}],
    "text": [{"text": "1+1="}],
    "experts": [{"routers": 4, "apart": 1, **ROUTER, "before": 1, "by": 2}],
    "routers": [{"routers": 4, "apart": apart} for apart in (0, 1)],
    "of_router": [
        {**ROUTER, "before": before, "by": by} for before, by in ((3, 0), (0, 3), (1, 1), (0, 0))
    ],
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
    "weights_undecided": [
        {"cell": "head", "io": io, "names": ["head.w", "head.b"]} for io in ("input", "output")
    ],
    "modes": [
        {"rollout": mode, "training": "training", "cells": cells, "dropping": dropping}
        for mode, cells, dropping in (
            *(("evaluation", ["root"], []), ("evaluation", ["root"], ["drop"])),
            *(("training", [], ["drop"] * 5), ("training", ["layers.0"], [])),
        )
    ],
    "ran_alone": [
        {
            **{"cell": "head", "io": io, "cells": ["norm (RMSNorm)"] * count, "first": "norm"},
            **{"side": side, "skipped": skipped},
        }
        for io, side, count, skipped in (
            *(("input", "training", 1, True), ("input", "rollout", 1, False)),
            *(("output", "training", 6, True), ("output", "rollout", 2, False)),
        )
    ],
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
