"""What is put on the PYTHONPATH of a script, and runs inside its processes."""
