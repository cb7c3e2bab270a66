"""Which token each row of a record belongs to, in English."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages.en.words import counted

TEXTS = {
    "no_entries": "no forward entry was recorded",
    "no_ids": (
        "{entry} was given no integer tensor [batch, sequence], so nothing says which tokens went "
        "through it. Record the network that is given the token ids: include and exclude must not "
        "leave out its outermost cell"
    ),
    "not_stored": (
        "the token ids ({record}) were not stored: {why}. Record with task: tensor or task: sketch"
    ),
    "too_many": "{count} elements are more than the {most} that are read at once",
    "other_block": (
        "{entry} was given block {block} as the first one of sample {sample} of its batch, which "
        "had block {before} so far; its position is that of the next token"
    ),
    "unknown_samples": (
        "{entry} was given one token for each of {count} samples, and nothing says which of the "
        "samples before they continue: its rows are left out"
    ),
    "no_beginning": (
        "{entry} continues {of} samples, and what stands before the tokens of {count} of them was "
        "not recorded; of the prompts and responses that were saved as token ids none, or more "
        "than one, fits: their rows are left out"
    ),
    "padding": (
        "{entry}: its lengths and positions do not say on which side its samples are padded: its "
        "rows are left out. Give it a mask, or other positions for the padding"
    ),
    "padding_let_in": (
        "{entry}: in {count} of {of} rows its mask lets in padding before the prompt, by the "
        "prompts that were saved"
    ),
    "unlike_saved": (
        "{missing} of {rows} rows of prompts and responses that were saved as token ids, among "
        "them of {key}, stand in no sequence that the network was given: what was taken for token "
        "ids may be something else (phase.tokens says which they are), or what was saved is of "
        "other prompts or another tokenizer"
    ),
    "drafts": lambda count: (
        f"{counted(count, 'row')} of rejected drafts: by the responses that were saved, no tokens "
        f"of a sample"
    ),
    "padding_behind": lambda count: (
        f"{counted(count, 'row')} of the rollout behind the ends of samples: padding, left out"
    ),
    "refilled": lambda count: (
        f"{counted(count, 'sequence')} began again with the tokens so far: a cache was filled "
        f"again (preemption)"
    ),
    "gap": (
        "{entry} was given a token at position {given} of a sequence of which {have} tokens were "
        "seen: its rows are left out. Record the phase from its first call on (token_range_start: "
        "0), or save prompts and responses as token ids"
    ),
}
