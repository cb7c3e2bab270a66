"""The parameters of both networks: which are the same, fused ones included, and since when not."""
