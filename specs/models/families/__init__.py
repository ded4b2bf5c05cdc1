"""Families of Hugging Face: what each reads of a config.json, by rows of traits."""
