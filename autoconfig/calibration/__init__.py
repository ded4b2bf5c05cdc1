"""Fitting the constants of the time model to measured runs."""
