"""Code of mindrlhf_msprobe, made while a training runs: this file lends it its name alone."""
