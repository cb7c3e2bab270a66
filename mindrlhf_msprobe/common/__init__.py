"""What several rooms need and none of them is about: patterns, texts, files of YAML, processes."""
