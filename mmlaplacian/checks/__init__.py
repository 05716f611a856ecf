"""Checks of input before a run: datasets, annotation files and weights."""
