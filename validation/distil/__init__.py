"""Distils published measurements of operators to the tables that the time model reads."""
