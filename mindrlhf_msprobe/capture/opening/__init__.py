"""What one opening of one phase is recorded with, however its cells run."""
