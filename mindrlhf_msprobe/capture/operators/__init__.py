"""Operators as entries: mint, ops, methods of tensors, primitives, communication."""
