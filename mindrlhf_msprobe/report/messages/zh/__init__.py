"""What is said in Chinese."""
