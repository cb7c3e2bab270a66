"""PyNative: hooks on cells → entries."""
