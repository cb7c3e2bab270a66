"""Series → a plot on the console, a CSV file, event files of TensorBoard."""
