"""core-tensorboard against the conformance kit."""

from core_tensorboard.conformance import TestTensorBoard

__all__ = ["TestTensorBoard"]
