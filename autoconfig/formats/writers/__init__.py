"""One writer a format: a scenario and a plan to text, and what the format cannot say."""
