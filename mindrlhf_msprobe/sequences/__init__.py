"""Which tokens of a step's batch are real, and which call and row of a network computed each.

Key data say which tokens of a response were sampled, trained, or fill it up. Of a causal network
the row of a token depends on the tokens up to it and on nothing else, so a row is named by the
tokens of its sequence up to its own: prefill and decode calls of a rollout, padded and packed
batches of a training have the same names for the same computation. What nothing says is left open.
"""
