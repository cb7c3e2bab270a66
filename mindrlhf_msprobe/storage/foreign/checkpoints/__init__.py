"""Checkpoints → parameters that are read in pieces: MindSpore's .ckpt, safetensors, shards."""
