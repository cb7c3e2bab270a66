"""Two arrays → how far they are apart."""
