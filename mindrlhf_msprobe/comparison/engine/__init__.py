"""Where the work is done: in this process, on local workers, or on a Ray cluster."""
