"""Measures on segmentations, with nulls, ceilings and intervals."""
