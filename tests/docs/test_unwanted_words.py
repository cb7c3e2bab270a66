"""Words that only their author understands do not come back; see `unwanted_words.WORDS`."""

import json
from collections import Counter
from pathlib import Path

from unwanted_words import WORDS, places

#: Room → how many places it has left. They go down; a room that has none is not listed.
LEFT: dict[str, int] = json.loads(Path(__file__).with_name("words_left.json").read_text())

SAMPLE = '''"""What is asked of a way."""
ASKED, way = "asked elsewhere", 1  # born elsewhere


class MyWay:
    def looks_alike(self):
        """Return a number; of what
        is none, 0.

        Otherwise 1.
        """
        return "story"
'''


def test_names_comments_and_docstrings_are_read_and_texts_are_not(tmp_path):
    """Each word is found where it stands, in any case, also over the end of a line."""
    folder = tmp_path / "room" / "inner" / "deep"
    folder.mkdir(parents=True)
    (folder / "sample.py").write_text(SAMPLE)
    found = [*places(tmp_path)]
    assert [(place.line, place.word) for place in found] == [
        (1, "asked"),
        (2, "asked"),
        (2, "born"),
        (2, "elsewhere"),
        (5, "way"),
        (6, "alike"),
        (7, "of what is none"),
        (10, "otherwise"),
    ]
    assert {place.room for place in found} == {"room/inner"}


def test_no_room_has_more_than_are_left():
    """A room says its things in other words; what is left of the old ones goes down."""
    found = [*places()]
    counts = Counter(place.room for place in found)
    more = {room for room, count in counts.items() if count > LEFT.get(room, 0)}
    shown = [f"{p.file}:{p.line}: {p.word}: {p.text}" for p in found if p.room in more]
    assert not shown, "\n".join([f"say instead: {WORDS}", *shown])
