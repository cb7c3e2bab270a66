"""The nodes of a graph that hand over what passes: on CPU, on Ascend."""
