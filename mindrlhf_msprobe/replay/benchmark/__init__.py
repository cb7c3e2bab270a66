"""The free benchmark: calls of cells and operators that run again on disturbed inputs."""
