"""What a training would run with, collected without recording it: `preflight collect`."""
