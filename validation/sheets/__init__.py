"""Validation of the predictions against published numbers."""
