"""What saved prompts and responses say of the tokens that networks were given."""
