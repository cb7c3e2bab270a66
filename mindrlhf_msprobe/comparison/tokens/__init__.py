"""Which token each row of a record belongs to, so that two ways through one network line up.

In a causal network the row of a token depends on the tokens up to it and on nothing else. A row is
therefore named by the tokens of its sequence up to its own: prefill and decode calls of a rollout,
padded and packed batches of a training have the same names for the same computation.
"""
