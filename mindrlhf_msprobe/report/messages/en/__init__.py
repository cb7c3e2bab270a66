"""What is said in English."""
