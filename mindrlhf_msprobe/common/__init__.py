"""What several rooms need and none of them is about: messages, texts, files of YAML, processes."""
