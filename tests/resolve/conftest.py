import pytest

from core.registry import (
    ACCELERATOR_REGISTRY,
    CLUSTER_ENVIRONMENT_REGISTRY,
    PRECISION_REGISTRY,
    STRATEGY_REGISTRY,
)

REGISTRIES = {
    "accelerator": ACCELERATOR_REGISTRY,
    "cluster environment": CLUSTER_ENVIRONMENT_REGISTRY,
    "precision": PRECISION_REGISTRY,
    "strategy": STRATEGY_REGISTRY,
}


@pytest.fixture
def register():
    """Registers a class for the length of one test."""
    registered = []

    def add(kind, name, target):
        REGISTRIES[kind].register(name, target)
        registered.append((kind, name))
        return target

    yield add
    for kind, name in registered:
        REGISTRIES[kind].remove(name)
