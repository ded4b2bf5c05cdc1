"""A study while it runs, and what it found."""
