"""Answers about GPU counts and money, on the terminal and as JSON."""
