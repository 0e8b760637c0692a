"""Figures: one function per figure, one theme, export."""
