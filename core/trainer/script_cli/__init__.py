"""A command line for one's own module and data module, and its config files."""
