"""Event segmentation: proposals and refinements."""
