"""What differs before any tensor is looked at: settings, versions, weights."""
