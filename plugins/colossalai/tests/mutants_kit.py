"""The kit on ZeRO without what core-colossalai adds; not named `test_...`: it must fail, in a process of its own."""

from accelerator_double import Zero1OnADouble
from zero_suite import ZeroConformance

from core.strategies import STRATEGY_REGISTRY


class Apart(Zero1OnADouble):
    """Each rank begins with its own weights, which Colossal-AI leaves to the user."""

    def _share(self, tensors):
        pass


class Forgetful(Zero1OnADouble):
    """`zero_grad` is that of the user's optimizer, which knows of parts only."""

    def _make_engine(self, module, optimizer):
        engine = super()._make_engine(module, optimizer)
        del vars(optimizer)["zero_grad"]
        return engine


STRATEGY_REGISTRY.register("apart", Apart, "ranks begin apart")
STRATEGY_REGISTRY.register("forgetful", Forgetful, "gradients of earlier steps stay")


class TestApart(ZeroConformance):
    alias = "apart"


class TestForgetful(ZeroConformance):
    alias = "forgetful"
