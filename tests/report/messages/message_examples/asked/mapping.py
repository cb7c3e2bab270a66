"""Parameters of the texts of mapping files."""

EXAMPLES = {"one_of": [{"names": "ms_api, pt_api", "hint": hint} for hint in ("", "1")]}
