"""Tables of sheets of rows → Excel and CSV files."""
