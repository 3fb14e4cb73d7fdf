"""A checkpoint in one file."""
