"""Runs of several ranks that hold parts of one record, put together to be compared as a whole."""
