"""Answers as tables, JSON and HTML; no arithmetic beyond units."""
