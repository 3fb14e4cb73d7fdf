import itertools
import json
import pickle

import numpy as np
import pytest
import torch

from checkpoint.damaged_on_purpose import read_manifest, write_manifest
from checkpoint.steps import names
from core.checkpoint import (
    DistributedCheckpointIO,
    TorchCheckpointIO,
    load_checkpoint,
    newest_valid,
    verify_checkpoint,
)
from core.checkpoint.any_form import formats
from core.checkpoint.folder.reader import FolderReader
from core.checkpoint.format import digest
from core.checkpoint.format.coverage import covers
from core.checkpoint.format.digest import BLOCK_BYTES
from core.contract import (
    CheckpointCorruptedError,
    CheckpointError,
    Chunk,
    ShardedLeaf,
    TensorDescription,
)
from support.checkpoint_collectives import Alone, save_state, together

ALONE = Alone()
IO = DistributedCheckpointIO()


def change_manifest(path, **entries):
    """Replace entries of the manifest, whose checksum is right."""
    write_manifest(path, read_manifest(path) | entries)


def test_a_target_of_another_shape_is_refused_and_nothing_is_filled(path):
    save_state(path, {"a": torch.ones(2), "model": {"w": torch.ones(2, 3)}})
    first = torch.zeros(2)
    with pytest.raises(
        CheckpointError, match=r"'model.w' has shape \(2, 3\) in .*last.ckpt' and \(3, 2\) here"
    ):
        load_checkpoint(path, {"a": first, "model": {"w": torch.zeros(3, 2)}})
    assert first.tolist() == [0, 0]


def test_chunks_are_read_whatever_chunks_were_written(path):
    """A tensor is written in four chunks, and read into four others, each of which has a part of
    each.
    """
    whole, target = torch.arange(7 * 5.0).reshape(7, 5), torch.full((7, 5), -1.0)

    def cut(values, row, column):
        boxes = itertools.product(((0, row), (row, 7)), ((0, column), (column, 5)))
        parts = [
            ((top, left), values[top:bottom, left:right]) for (top, bottom), (left, right) in boxes
        ]
        return ShardedLeaf(
            (7, 5), torch.float32, tuple(Chunk(at, tuple(part.shape), part) for at, part in parts)
        )

    save_state(path, {"w": cut(whole, 5, 2)})
    assert torch.equal(load_checkpoint(path)["w"], whole)
    assert IO.describe_checkpoint(path, collectives=ALONE) == {
        "w": TensorDescription((7, 5), torch.float32)
    }
    leaf = cut(target, 4, 3)
    assert load_checkpoint(path, {"w": leaf})["w"] is leaf
    assert torch.equal(target, whole)


def test_only_plain_files_of_text_and_numbers_are_written(path):
    save_state(path, {"model": {"w": torch.arange(3, dtype=torch.float32)}, "step": 3})
    index = json.loads(next(path.glob("*-00000.json")).read_text())
    assert index["tree"] == {"model": {"w": {"$tensor": ["float32", [3]]}}, "step": 3}
    assert index["leaves"] == {'["model","w"]': [[[0], [3], 0]]}
    assert next(path.glob("*.data")).read_bytes() == np.arange(3, dtype=np.float32).tobytes()
    manifest = read_manifest(path)
    assert (manifest["world_size"], manifest["writer"]) == (1, ALONE.writer)
    assert manifest["versions"]["torch"] == torch.__version__


# What is refused.


def test_a_state_that_is_no_dict_is_refused(path):
    with pytest.raises(
        CheckpointError, match=r"^state is a builtins\.list, which a checkpoint can't hold"
    ):
        save_state(path, [1])
    assert names(path.parent) == []


@pytest.mark.filterwarnings("ignore:.*quantize_per_tensor")
def test_a_description_is_no_part_of_what_is_loaded_after_it(path):
    storage, state = DistributedCheckpointIO(), {"epochs": [1, 2, 3]}
    save_state(path, state, storage)
    storage.describe_checkpoint(path, collectives=Alone())["epochs"].append(4)
    assert storage.load_checkpoint(path, collectives=Alone()) == state


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: {"\ud800": 1}, "lone surrogate"),
        (
            lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
            "is a quantized tensor. Save its int_",
        ),
    ],
)
def test_what_one_file_holds_and_a_folder_does_not_is_refused_by_its_path(path, make, told):
    with pytest.raises(CheckpointError, match=rf"'a'.*{told}"):
        save_state(path, {"a": make()})


def test_somebody_elses_folder_is_left_alone(path):
    path.mkdir()
    (path / "thesis.tex").write_text("ten years")
    with pytest.raises(
        CheckpointError, match=r"a folder that isn't a checkpoint, with 'thesis.tex' in it"
    ):
        save_state(path, {"x": 1})
    with pytest.raises(
        CheckpointError, match=r"can't be deleted: it is a folder that isn't a checkpoint"
    ):
        IO.remove_checkpoint(path, collectives=ALONE)
    with pytest.raises(CheckpointCorruptedError, match=r"is a folder without manifest.json"):
        load_checkpoint(path)
    assert names(path) == ["thesis.tex"]


def test_a_file_in_the_place_of_a_folder_is_left_alone(path):
    save_state(path, {"x": 1}, TorchCheckpointIO())
    with pytest.raises(
        CheckpointError, match="a file is there, and this CheckpointIO writes a folder; remove it"
    ):
        save_state(path, {"x": 2})
    assert load_checkpoint(path) == {"x": 1}, "it reads what the other one wrote"
    IO.remove_checkpoint(path, collectives=ALONE)
    assert names(path.parent) == []


def test_a_link_is_replaced_and_what_it_points_to_stays(path):
    save_state(path.with_name("epoch=0.ckpt"), {"x": 0})
    path.symlink_to("epoch=0.ckpt")
    assert load_checkpoint(path) == {"x": 0}
    save_state(path, {"x": 1})
    assert load_checkpoint(path) == {"x": 1}
    assert load_checkpoint(path.with_name("epoch=0.ckpt")) == {"x": 0}
    path.with_name("link").symlink_to("last.ckpt")
    IO.remove_checkpoint(path.with_name("link"), collectives=ALONE)
    assert load_checkpoint(path) == {"x": 1}


# What is damaged.


def test_a_flipped_bit_anywhere_is_found_and_the_file_is_named(path):
    save_state(path, {"x": torch.ones(50), "y": torch.ones(3), "name": "value"})
    for file in list(path.iterdir()):
        content = file.read_bytes()
        for position in range(0, len(content), 7):
            flipped = bytearray(content)
            flipped[position] ^= 1 << position % 8
            file.write_bytes(flipped)
            with pytest.raises(CheckpointCorruptedError, match=file.name):
                verify_checkpoint(path)
            with pytest.raises(CheckpointCorruptedError, match=file.name):
                load_checkpoint(path)
        file.write_bytes(content)
    verify_checkpoint(path)


@pytest.mark.parametrize("verifies_first", [True, False])
def test_a_damaged_block_is_found_where_it_is_read(path, verifies_first):
    size = 3 * BLOCK_BYTES
    save_state(path, {name: torch.zeros(size, dtype=torch.uint8) for name in ("first", "second")})
    data = next(path.glob("*.data"))
    with data.open("r+b") as file:
        file.seek(4 * BLOCK_BYTES + 5)
        file.write(b"!")
    targets = {name: torch.ones(size, dtype=torch.uint8) for name in ("first", "second")}
    storage = DistributedCheckpointIO(verifies_first=verifies_first)
    told = (
        rf"{data.name}' is damaged between byte {4 * BLOCK_BYTES} and {5 * BLOCK_BYTES}: the digest"
    )
    with pytest.raises(CheckpointCorruptedError, match=told) as caught:
        storage.load_checkpoint(path, collectives=ALONE, state=targets)
    # It is read once, and verified meanwhile, unless it is asked to be verified first.
    assert targets["first"].max() == verifies_first
    assert (
        caught.value.overwritten
        == ("overwritten in part: load another" in str(caught.value))
        == (not verifies_first)
    )
    assert pickle.loads(pickle.dumps(caught.value)).overwritten == caught.value.overwritten
    # A rank that needs a part has no need of the rest.
    row = ShardedLeaf(
        (size,), torch.uint8, (Chunk((0,), (10,), torch.ones(10, dtype=torch.uint8)),)
    )
    load_checkpoint(path, {"first": row, "second": row})
    assert row.chunks[0].tensor.max() == 0


@pytest.mark.parametrize("ending", [".data", "-00000.json", "manifest.json"])
def test_a_file_that_is_gone_is_named(path, ending):
    save_state(path, {"x": torch.ones(50)})
    file = next(path.glob(f"*{ending}"))
    file.unlink()
    with pytest.raises(
        CheckpointCorruptedError, match=rf"its file '{file.name}' is missing|without {file.name}"
    ):
        load_checkpoint(path)


def test_a_newer_format_says_which_release_reads_it(path):
    save_state(path, {"x": 1})
    change_manifest(path, format=3, versions={"core": "3.1.0"})
    with pytest.raises(
        CheckpointCorruptedError,
        match=r"format 3, written by core '3.1.0'.*reads up to 2\. Install",
    ):
        load_checkpoint(path)


def test_the_first_format_is_read(path, monkeypatch):
    """Its blocks had 4 MiB, and nothing said so."""
    saved = torch.arange(5 * BLOCK_BYTES // 8)
    with monkeypatch.context() as patches:
        patches.setattr(digest, "BLOCK_BYTES", 4 << 20)
        save_state(path, {"x": saved})
    content = read_manifest(path)
    assert content.pop("block_bytes") == 4 << 20
    write_manifest(path, content | {"format": 1})
    target = torch.zeros_like(saved)
    load_checkpoint(path, {"x": target})
    assert torch.equal(target, saved)
    assert torch.equal(load_checkpoint(path)["x"], saved)


def test_without_its_manifest_it_is_none(path):
    save_state(path, {"x": 1})
    (path / "manifest.json").unlink()
    assert not IO.exists(path)
    IO.remove_checkpoint(path, collectives=ALONE)
    assert names(path.parent) == []


def test_no_index_can_make_it_run_code_or_read_other_files(path):
    save_state(path, {"x": torch.ones(3)})
    path.with_name("secret.json").write_text("{}")
    change_manifest(path, files={"../secret.json": {"size_bytes": 2, "digest": "0"}})
    with pytest.raises(CheckpointCorruptedError, match=r"names a file outside"):
        load_checkpoint(path)


# The newest one that is whole.


def test_the_newest_that_verifies_is_found_and_the_others_are_named(tmp_path):
    assert newest_valid(tmp_path) is newest_valid(tmp_path / "nowhere") is None
    for step in range(4):
        save_state(tmp_path / f"{9 - step}.ckpt", {"step": step, "x": torch.ones(10)})
    (tmp_path / "other").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    assert newest_valid(tmp_path) == str(tmp_path / "6.ckpt")
    next((tmp_path / "6.ckpt").glob("*.data")).write_bytes(bytes(40))
    (tmp_path / "7.ckpt" / "manifest.json").write_bytes(b"{")
    with pytest.warns(UserWarning, match="Looking for an older one") as caught:
        assert newest_valid(tmp_path) == str(tmp_path / "8.ckpt")
    assert [
        name for row in caught for name in ("6.ckpt", "7.ckpt") if name in str(row.message)
    ] == ["7.ckpt", "6.ckpt"]
    assert newest_valid(tmp_path, first=tmp_path / "9.ckpt") == str(tmp_path / "9.ckpt")


def test_the_newest_of_several_folders_is_found_by_storage_and_suffix(tmp_path):
    for name in ("old/1.ckpt", "new/2.ckpt", "new/3.part"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        save_state(tmp_path / name, {"x": 1})
    folders = tmp_path / "new", tmp_path / "old", tmp_path / "nowhere"
    assert newest_valid(*folders) == str(tmp_path / "new/3.part")
    assert newest_valid(*folders, suffix=".ckpt") == str(tmp_path / "new/2.ckpt")
    (tmp_path / "old" / "last.ckpt").symlink_to(tmp_path / "new" / "2.ckpt")
    assert newest_valid(tmp_path / "old", suffix=".ckpt") == str(tmp_path / "old/last.ckpt")

    class Empty(DistributedCheckpointIO):
        def exists(self, path):
            return False

    assert newest_valid(*folders, storage=Empty()) is None


# What a rank reads of a checkpoint that many have written.


NUM_WRITERS = 24


@pytest.fixture
def written_by_many(path, monkeypatch):
    """A checkpoint whose rows and columns were written by 24 ranks, and the indexes that are read
    of it.
    """
    whole = torch.arange(NUM_WRITERS * 6.0).reshape(NUM_WRITERS, 6)

    def save_row(collectives):
        rank = collectives.rank
        row = ShardedLeaf(
            (NUM_WRITERS, 6), torch.float32, (Chunk((rank, 0), (1, 6), whole[rank : rank + 1]),)
        )
        IO.save_checkpoint(
            {"w": row, "plain": torch.ones(2), "step": 7}, path, collectives=collectives
        )

    assert together(save_row, NUM_WRITERS) == [None] * NUM_WRITERS
    read, take = [], FolderReader._take_index
    monkeypatch.setattr(
        FolderReader,
        "_take_index",
        lambda self, name: (read.append(int(name[9:14])), take(self, name)),
    )
    return whole, read


def rows(whole, first, number):
    chunk = Chunk((first, 0), (number, 6), torch.zeros(number, 6))
    return ShardedLeaf(tuple(whole.shape), torch.float32, (chunk,)), whole[first : first + number]


@pytest.mark.parametrize(
    ("share", "first", "number", "indexes"),
    [
        ((5, NUM_WRITERS), 5, 1, {0, 5}),
        ((1, 12), 2, 2, {0, 2, 3}),
        ((2, 3), 16, 8, {0, *range(16, 24)}),
        ((0, NUM_WRITERS), 23, 1, set(range(NUM_WRITERS))),
    ],
)
def test_a_rank_reads_the_indexes_of_what_it_needs(
    path, written_by_many, share, first, number, indexes
):
    whole, read = written_by_many
    target, expected = rows(whole, first, number)
    loaded = formats.load_checkpoint(path, {"w": target}, share)
    assert torch.equal(target.chunks[0].tensor, expected)
    assert (loaded["step"], loaded["plain"].tolist()) == (7, [1, 1])
    # As many as it needs, and at most as many again: it reads one, then two, then four.
    assert indexes <= set(read)
    assert len(read) == len(set(read)) < 2 * len(indexes)


def test_what_is_missing_is_looked_for_everywhere_and_a_part_is_enough(path, written_by_many):
    whole, read = written_by_many
    assert formats.describe(path)[0]["w"].shape == (NUM_WRITERS, 6)
    assert read == [0]
    assert torch.equal(load_checkpoint(path)["w"], whole)
    for file in path.glob("*-00003.json"):
        file.write_bytes(b"")
    formats.load_checkpoint(path, {"w": rows(whole, 20, 1)[0]}, (20, NUM_WRITERS))
    for place in ((3, NUM_WRITERS), (0, 1)):
        with pytest.raises(CheckpointCorruptedError, match=r"00003\.json' is damaged"):
            formats.load_checkpoint(path, {"w": rows(whole, 3, 1)[0]}, place)
    with pytest.raises(CheckpointCorruptedError, match=r"00003\.json' is damaged"):
        verify_checkpoint(path)


@pytest.mark.parametrize(
    ("wanted", "boxes", "expected"),
    [
        (((0, 0), (2, 1)), [((0, 0), (1, 2)), ((1, 0), (1, 2))], True),
        (((1, 0), (1, 2)), [((1, 0), (1, 1))], False),
        # of which one row comes twice
        (((1, 1), (2, 2)), [((0, 0), (2, 4)), ((1, 0), (2, 4))], False),
        # twice elsewhere
        (((0, 0), (1, 1)), [((0, 0), (1, 1)), ((3, 0), (2, 1)), ((3, 0), (2, 1))], True),
        (((0,), (0,)), [], True),
    ],
)
def test_chunks_are_looked_at_within_what_is_wanted(wanted, boxes, expected):
    assert covers(wanted, boxes) == expected
