"""The way by files, for devices that cannot call the host: written, read, removed."""
