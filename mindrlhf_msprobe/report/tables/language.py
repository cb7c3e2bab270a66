"""The fixed words of our own sheets in the language of a reader.

msprobe's tables keep msprobe's headers; statuses, causes and the keys of settings are keywords and
stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.findings import Status
from mindrlhf_msprobe.report.formats.sheets import Row, Sheet
from mindrlhf_msprobe.report.messages import text_of
from mindrlhf_msprobe.report.messages.en.shown import tables

_LABELLED = ("verdict", "counts")  # sections whose items are labels, not names of the user's
_COUNT = "_count"  # ends the names of labels that stand beside a number alone
_KEYWORDS = frozenset(status.value for status in Status)  # no labels; `different` is a header, too


def in_language(sheet: Sheet, lang: str) -> Sheet:
    """Return a sheet of ours with its name, headers and labels in `lang`."""
    if lang == "en":
        return sheet
    rows, words, items = sheet.rows, _words(lang), _items(lang)

    def labelled() -> Iterator[Row]:
        for colour, (first, *others) in rows():
            if first in _LABELLED and others and others[0] not in _KEYWORDS:
                others[0] = items.get(others[0], others[0])
            yield colour, (words.get(first, first), *others)

    return replace(
        sheet,
        name=words.get(sheet.name, sheet.name),
        stem=sheet.name,
        header=tuple(words.get(header, header) for header in sheet.header),
        rows=labelled,
    )


@cache
def _words(lang: str) -> dict[object, str]:
    """Return what each label is called; what is not in here stands as it is."""
    return {
        label: text_of(message(f"tables.{name}"), lang)
        for name, label in tables.TEXTS.items()
        if isinstance(label, str) and "{" not in label and not name.endswith(_COUNT)
    }


@cache
def _items(lang: str) -> dict[object, str]:
    """Return what each item is called; a number of ranks is not called as what is said of ranks."""
    counts: dict[object, str] = {
        label: text_of(message(f"tables.{name}"), lang)
        for name, label in tables.TEXTS.items()
        if name.endswith(_COUNT)
    }
    return {**_words(lang), **counts}
