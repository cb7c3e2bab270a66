"""What is concluded: where error is born, what is to blame, and which tokens show it."""
