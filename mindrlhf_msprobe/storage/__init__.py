"""Records ⇄ files. Nothing in here knows MindSpore; see layout.py for where everything lies."""
