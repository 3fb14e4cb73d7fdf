"""Recorded times in which each rank computes, and the timeline of a step."""
