"""The protocol's edge: limits, pages of lists, metrics."""
