"""The kit on `Bucketed`; not named `test_...`: it must fail, in a process of its own."""

from bucketed import BucketedStrategy

from core.strategies import STRATEGY_REGISTRY
from core_fairscale import conformance

STRATEGY_REGISTRY.register("bucketed", BucketedStrategy, "loses gradients that are None between two steps")


class TestBucketed(conformance.TestDDPSharded):
    alias = "bucketed"
