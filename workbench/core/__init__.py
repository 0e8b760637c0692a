"""Types and their exact arithmetic: no torch, no files, no pictures."""
