"""msprobe's mappings: which record of NPU is which of Bench, by files in msprobe's four formats.

As msprobe calls them: NPU is the run under test, B of a comparison; Bench is the baseline, A.

files.py reads them, partners.py applies them.
"""
