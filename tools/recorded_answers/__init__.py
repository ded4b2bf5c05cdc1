"""Records what the product answers to a fixed set of questions, and compares two recordings (see `__main__`)."""
