"""A model cut into stages: its parts, who has which, and their values."""
