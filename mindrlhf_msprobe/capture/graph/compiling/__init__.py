"""When MindSpore compiles, what is put into its hands, and which graph runs then."""
