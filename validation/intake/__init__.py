"""How published tables become tables in the columns of a user's: `python -m validation.intake`."""
