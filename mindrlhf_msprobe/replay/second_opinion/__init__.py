"""A second opinion while training: cells and operators computed again in float64."""
