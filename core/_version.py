__version__ = "0.1.0"
DISTRIBUTION = "core-base"
TRAINING = "core-training"
