"""Starts of serving engines: what their commands say, and what a release takes where they say nothing."""
