"""Doors for those who are no people: tools of agents, and annotations of a CI."""
