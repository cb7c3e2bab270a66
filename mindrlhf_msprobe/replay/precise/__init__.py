"""Operators in higher precision: formulas in numpy with gradients, and how far rounding carries."""
