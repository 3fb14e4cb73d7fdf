"""A checkpoint of whichever form is at a path."""
