"""msprobe's mappings: which record of A is which of B, by files in msprobe's four formats.

files.py reads them, apis.py and layers.py say what they leave open, partners.py applies them.
"""
