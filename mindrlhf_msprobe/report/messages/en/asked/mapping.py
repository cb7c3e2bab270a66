"""What was expected in a file of msprobe's mappings."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text

TEXTS: dict[str, Text] = {
    "two_names": "a name and a name",
    "layer": "a layer's class and a mapping of what is inside it",
    "api_item": "a mapping with ms_api and pt_api",
    "one_of": "one of {names}{hint}",
    "api": "an API as in dump.json, {{api_type}}.{{api_name}}, e.g. Functional.abs",
    "places": "a list of numbers or names, each once",
    "as_many": "as many as in {key}, {count}",
}
