"""Arrays and JSON as files that appear whole or not at all."""
