"""What the trainer calls beside the probe itself, and which probe answers."""
