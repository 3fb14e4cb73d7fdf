"""The files of a checkpoint folder: manifest, digests, and chunks of tensors that are read and
verified.
"""
