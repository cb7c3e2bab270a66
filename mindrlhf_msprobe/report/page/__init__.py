"""A page: one offline HTML file of a comparison, or of one run's health, that opens anywhere."""
