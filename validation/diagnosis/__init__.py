"""Diagnosis against public cases, published runs and faults that are put into made runs."""
