"""A checkpoint written under any configuration loads under any other, and training goes on as if
nothing had been.
"""

import functools

import pytest

from support.portability import FORK, SINGLE_DEVICE, Configuration, run_matrix

pytestmark = [pytest.mark.numbers, pytest.mark.slow]
HYBRID = {**FORK, "sharding_strategy": "HYBRID_SHARD", "device_mesh": (2, 2)}
TENSOR = {**FORK, "tensor_parallel_size": 2}
GROUPS = {
    "kinds": [
        SINGLE_DEVICE,
        Configuration("ddp", 2, options=FORK),
        Configuration("model_parallel", 2, "fsdp+tp", options=TENSOR),
    ],
    "shards": [
        *(Configuration("fsdp", size, options=FORK) for size in (2, 4)),
        Configuration("fsdp", 4, "hybrid", options=HYBRID),
        Configuration("model_parallel", 4, "fsdp+tp", options=TENSOR),
    ],
}
PAIRS = [
    (group, writer.name, reader.name)
    for group, among in GROUPS.items()
    for writer in among
    for reader in among
]


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    return functools.cache(lambda group: run_matrix(GROUPS[group], tmp_path_factory.mktemp(group)))


@pytest.mark.parametrize(("group", "writer", "reader"), PAIRS)
def test_a_pair(cells, group, writer, reader):
    """The other pairs are run by `benchmarks/checkpoint_pairs.py`."""
    cell = cells(group)[writer, reader]
    assert cell.is_good, cell
