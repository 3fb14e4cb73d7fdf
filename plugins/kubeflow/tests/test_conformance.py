"""core-kubeflow against the conformance kit."""

from core_kubeflow.conformance import TestKubeflow
from core_testing.command import find_suites

__all__ = ["TestKubeflow"]


def test_core_check_finds_the_suite():
    (suite,) = find_suites("cluster environment", "kubeflow", {})
    assert issubclass(suite, TestKubeflow)
