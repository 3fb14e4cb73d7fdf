"""A short run of `fit` on copies, which leaves nothing behind: for callbacks that try settings."""
