import pytest

from core.registry import ACCELERATOR_REGISTRY, CHECKPOINT_IO_REGISTRY, LOGGER_REGISTRY, PRECISION_REGISTRY

PRECISIONS = {
    **{name: name for name in ("32-true", "64-true", "16-true", "bf16-true", "16-mixed", "bf16-mixed")},
    **{"32": "32-true", "64": "64-true", "16": "16-mixed", "bf16": "bf16-mixed"},
}


@pytest.mark.parametrize(("alias", "name"), PRECISIONS.items())
def test_a_precision_is_made_by_its_alias(alias, name):
    assert PRECISION_REGISTRY.create(alias).name == name


@pytest.mark.parametrize(
    ("registry", "alias", "class_name"),
    [
        (ACCELERATOR_REGISTRY, "cpu", "CPUAccelerator"),
        (ACCELERATOR_REGISTRY, "cuda", "CUDAAccelerator"),
        (ACCELERATOR_REGISTRY, "mps", "MPSAccelerator"),
        (CHECKPOINT_IO_REGISTRY, "torch", "TorchCheckpointIO"),
        (LOGGER_REGISTRY, "csv", "CSVLogger"),
    ],
)
def test_a_built_in_is_made_by_its_alias(registry, alias, class_name):
    assert type(registry.create(alias)).__name__ == class_name
