"""What a rank recorded in a phase of a step as columns: a row a record, no object for each."""
