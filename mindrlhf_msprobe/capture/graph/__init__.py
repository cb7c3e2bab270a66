"""Graph mode and jit: probes compiled into cells → entries."""
