"""What a record was judged by."""

EXAMPLES = {"noise": [{"repetitions": 1}, {"repetitions": 3}]}
