"""Finished steps, looked at while training: joins capture with checks and trends, unknown to both.

A process of its own follows the run's directory (`follower`), so that the training gives it no more
than the number of each step that ended (`training`). What it finds comes back through a pipe.
"""
