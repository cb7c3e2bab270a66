"""Its trainers."""
