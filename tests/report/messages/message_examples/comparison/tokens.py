"""Which token each row of a record belongs to."""

ENTRY = "Cell.root.Net.forward.0"
EXAMPLES = {
    "no_entries": [{}],
    "no_ids": [{"entry": ENTRY}],
    "not_stored": [{"record": f"{ENTRY}.input.0", "why": "x"}],
    "too_many": [{"count": 2, "most": 1}],
    "other_block": [{"entry": ENTRY, "block": 7, "before": 3, "sample": 1}],
    "unknown_samples": [
        {"entry": ENTRY, "count": 5, "saved": False},
        {"entry": ENTRY, "count": 1, "saved": True},
    ],
    "no_beginning": [{"entry": ENTRY, "count": 1, "of": 5}],
    "padding": [{"entry": ENTRY}],
    "padding_let_in": [{"entry": ENTRY, "count": 2, "of": 4}],
    "unlike_saved": [{"key": "responses", "missing": 3, "rows": 4}],
    "drafts": [{"count": 1}, {"count": 38}],
    "padding_behind": [{"count": 1}, {"count": 28}],
    "refilled": [{"count": 1}, {"count": 2}],
    "gap": [{"entry": ENTRY, "given": 9, "have": 0}],
    "gap_unlike": [{"entry": ENTRY, "given": 9, "have": 0}],
    "cached": [{"count": 2, "of": 3, "tokens": 12}],
    "taken_for_padding": [{"pad": 0}],
}
