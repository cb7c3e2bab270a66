"""Live network → records. The only core package that imports MindSpore, when a probe is on."""
