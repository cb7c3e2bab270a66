"""What an older run.json says in English words, as the codes they have by now.

Behind this nothing looks into a sentence. Words that no code has any more, and a trainer's own,
stay a text.
"""

from __future__ import annotations

from mindrlhf_msprobe.common.message import TEXT, Message, as_message, message, read_words
from mindrlhf_msprobe.common.text.printable import shortened


def kind_lost(text: str) -> Message:
    """Return a kind of `lost`: what was lost, and the error behind it."""
    what, colon, why = shortened(text).rpartition(": ")
    if not colon:
        return as_message(text)
    read = {"what": read_words(what, "lost") or what, "why": read_words(why, "lost") or why}
    return message("lost.kind", **read)


def reason(said: Message) -> Message:
    """Return a reason of `coverage`."""
    if said.code != TEXT:
        return said
    return read_words(str(said.params.get("text", "")), "coverage") or said
