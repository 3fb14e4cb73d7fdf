"""core-mlflow against the conformance kit."""

from core_mlflow.conformance import TestMLFlow

__all__ = ["TestMLFlow"]
