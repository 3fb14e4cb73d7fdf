"""All that is refused, or means something else than under Lightning, each with its reason."""
