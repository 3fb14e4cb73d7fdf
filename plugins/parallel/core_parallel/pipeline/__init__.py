"""The run of a model in stages: all microbatches forward and then back, or one of torch's
schedules.
"""
