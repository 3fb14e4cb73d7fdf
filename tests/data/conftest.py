"""Hypothesis fails an example that takes longer than 200 ms, which a busy machine does."""

from hypothesis import settings

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
