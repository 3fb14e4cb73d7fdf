"""Shards in the memory of two nodes each, and what is left of them when nodes are lost. Ranks are
threads here.
"""

import os
import shutil
from operator import attrgetter

import pytest
import torch

from core import CheckpointError
from core.contract import CheckpointNotFoundError, Chunk, ShardedLeaf
from core_neighbour import NeighbourCheckpointIO, node_parts
from support.checkpoint_collectives import Alone, together

ROWS = 12
NAME = "step-1.ckpt"


def state_of(rank, num_ranks, value):
    """Rows of a tensor, more of them on later ranks; a tensor and plain values of rank 0."""
    cuts = [0, *(ROWS * (each + 1) // num_ranks for each in range(num_ranks))]
    start, stop = cuts[rank], cuts[rank + 1]
    rows = torch.arange(start, stop, dtype=torch.float64)[:, None].expand(-1, 3) + value
    leaf = ShardedLeaf(
        (ROWS, 3), torch.float64, (Chunk((start, 0), (stop - start, 3), rows.clone()),)
    )
    return {"model": {"weight": leaf, "count": torch.tensor(7 + value)}, "name": f"rank {rank}"}


@pytest.fixture
def nodes(tmp_path):
    """The memory of four nodes."""
    made = [tmp_path / name for name in "abcd"]
    for path in made:
        path.mkdir()
    return made


def save(nodes, per_node, value=0.0, name=NAME, change=lambda rank, state: state):
    """Save with so many ranks on each node."""
    num_ranks = len(nodes) * per_node

    def one(ranks):
        storage = NeighbourCheckpointIO(ranks.rank // per_node)
        state = change(ranks.rank, state_of(ranks.rank, num_ranks, value))
        storage.save_checkpoint(state, nodes[ranks.rank // per_node] / name, collectives=ranks)

    return together(one, num_ranks)


def load(nodes, per_node):
    """What ranks find and load into their own rows: the name and whether all is right, on each."""
    num_ranks = len(nodes) * per_node

    def one(ranks):
        node = ranks.rank // per_node
        storage = NeighbourCheckpointIO(node)
        found = storage.newest(nodes[node], collectives=ranks)
        if found is None:
            return None
        target = state_of(ranks.rank, num_ranks, -1.0)["model"]["weight"]
        path = nodes[node] / found[0]
        assert storage.describe_checkpoint(path, collectives=ranks)["model"]["weight"].shape == (
            ROWS,
            3,
        )
        state = storage.load_checkpoint(
            path, collectives=ranks, state={"model": {"weight": target}}
        )
        [chunk] = target.chunks
        value = chunk.tensor[0, 0].item() - chunk.offsets[0]
        assert torch.equal(
            chunk.tensor, state_of(ranks.rank, num_ranks, value)["model"]["weight"].chunks[0].tensor
        )
        assert (state["name"], state["model"]["count"].item()) == ("rank 0", 7 + value)
        return found[0], value

    return together(one, num_ranks)


@pytest.mark.parametrize("lost", range(3))
@pytest.mark.parametrize("per_node", [1, 2])
def test_every_shard_outlives_any_one_node(nodes, lost, per_node):
    save(nodes[:3], per_node)
    shutil.rmtree(nodes[lost])
    nodes[3].rmdir()  # a new machine has not even the folder
    # On as many nodes, of which one is new: it gets the parts of its ranks and rank 0's, and
    # nothing else.
    later = [path if number != lost else nodes[3] for number, path in enumerate(nodes[:3])]
    assert load(later, per_node) == [(NAME, 0.0)] * 3 * per_node
    expected = {f"{rank:05}" for rank in (*range(lost * per_node, (lost + 1) * per_node), 0)}
    assert {path.name[9:14] for path in nodes[3].rglob("*.data")} == expected


def test_what_is_left_loads_at_another_number_of_ranks(nodes):
    save(nodes[:3], 2)
    shutil.rmtree(nodes[1])
    assert load([nodes[2], nodes[0]], 1) == [(NAME, 0.0)] * 2
    assert load([nodes[3], nodes[0], nodes[2]], 1) == [(NAME, 0.0)] * 3
    shutil.rmtree(nodes[2])
    shutil.rmtree(nodes[3])
    assert load([nodes[0]], 1) == [None]  # two neighbours are lost, and some parts with them


def test_one_rank_that_is_alone_keeps_its_shards(nodes):
    """It has none to exchange with, and no way to do so."""
    storage = NeighbourCheckpointIO(0)
    storage.save_checkpoint(state_of(0, 1, 2.0), nodes[0] / NAME, collectives=Alone())
    assert load([nodes[0]], 1) == [(NAME, 2.0)]
    name, _ = NeighbourCheckpointIO(0).newest(nodes[0], collectives=Alone())
    assert name == NAME


def test_the_newest_that_is_complete_counts(nodes):
    save(nodes[:2], 1)
    save(nodes[:2], 1, value=1.0, name="step-2.ckpt")
    save(nodes[:2], 1, value=2.0, name="step-2.ckpt")  # again, from the same step
    assert load(nodes[:2], 1) == [("step-2.ckpt", 2.0)] * 2
    # One rank died before its note was there, on any node.
    for node in nodes[:2]:
        for note in (node / "step-2.ckpt").glob(".*-00001.note"):
            note.unlink()
    assert load(nodes[:2], 1) == [(NAME, 0.0)] * 2
    # One copy of a part is damaged, and then the other one.
    copies = [next((node / NAME).glob("*-00001.data")) for node in nodes[:2]]
    for path, expected in zip(copies, (NAME, None), strict=True):
        path.write_bytes(path.read_bytes()[:-1] + b"x")
        found = load(nodes[:2], 1)
        assert found == [expected and (expected, 0.0)] * 2


def test_a_state_that_cannot_be_saved_is_an_error_on_all(nodes):
    errors = save(
        nodes[:2], 1, change=lambda rank, state: {**state, "x": object()} if rank else state
    )
    assert [type(error) for error in errors] == [CheckpointError] * 2
    assert "On rank 1" in str(errors[0])


@pytest.mark.parametrize(
    ("failing", "newest"),
    # of which the other node has both notes
    [("os.posix_fallocate", NAME), ("add_note", "step-2.ckpt")],
)
def test_a_rank_that_cannot_write_is_an_error_on_all(nodes, monkeypatch, failing, newest):
    def fail_on_one(*arguments):
        if torch.distributed.get_rank() == 1:
            raise OSError(28, "No space left on device")
        return real(*arguments)

    save(nodes[:2], 1)
    real = attrgetter(failing)(node_parts)
    monkeypatch.setattr(f"core_neighbour.node_parts.{failing}", fail_on_one)
    errors = save(nodes[:2], 1, name="step-2.ckpt")
    assert [type(error) for error in errors] == [CheckpointError] * 2
    assert all("No space left on device" in str(error) for error in errors)
    monkeypatch.undo()
    assert load(nodes[:2], 1) == [(newest, 0.0)] * 2


def test_a_part_of_which_a_file_is_gone_is_not_whole(nodes):
    save(nodes[:2], 1)
    for node in nodes[:2]:
        next((node / NAME).glob("*-00001.data")).unlink()
    assert load(nodes[:2], 1) == [None] * 2


def test_what_was_not_found_is_not_there(nodes):
    def one(ranks):
        NeighbourCheckpointIO(0).load_checkpoint(nodes[0] / NAME, collectives=ranks)

    assert [type(error) for error in together(one, 1)] == [CheckpointNotFoundError]
    assert os.listdir(nodes[0]) == []
