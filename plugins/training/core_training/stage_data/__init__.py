"""The data of a run: the user's loaders, this rank's shard of them, and the way of a batch to the
device.
"""
