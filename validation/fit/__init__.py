"""Fits on the published tables, and the pages that print them."""
