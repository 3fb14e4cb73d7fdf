"""The search for good settings: short runs of `fit` on copies, which leave nothing behind."""
