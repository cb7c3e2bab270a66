"""What several commands share: arguments, options, exit codes, pages."""
