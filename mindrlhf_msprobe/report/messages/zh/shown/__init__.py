"""What stands around an answer: on the console, in the tables, in the commands' help."""
