"""Batches cut into microbatches, and what a step logs and counts once for all of them."""
