"""The conformance suite of checkpoint readers."""

from __future__ import annotations

import copy
import io
import os
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from core import CheckpointReader
from core.checkpoint import load_checkpoint
from core_testing.conformance import Conformance
from core_testing.marks import of_trainer
from core_testing.ranks import one_device
from core_testing.trainer_names import Module

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from core_testing.ranks import Rank

_HEAD_BYTES = 1 << 20
_JUNK: tuple[Any, ...] = (None, 7, "junk", [1, 2], {"junk": 1})
_SAID = (KeyError, IndexError, TypeError, ValueError, AttributeError)
"""The errors of `translate` by which the core knows that a file isn't what it looked like."""


class CheckpointReaderConformance(Conformance[CheckpointReader]):
    """All that a checkpoint reader must prove. Subclass it, set `alias`, and override `content`.

    What a file must become is known to the reader's author alone: test that on files that the
    program has written.
    """

    kind = "checkpoint reader"

    def content(self) -> dict[str, Any]:
        """A small checkpoint as the program saves it, with `torch.save`. Empty: the tests that need
        one are skipped.
        """
        return {}

    def test_names_its_program(self) -> None:
        """Messages have the name of the program that writes the files."""
        assert isinstance(self.make().program, str)
        assert self.make().program.strip()

    def test_recognizes_its_file(self) -> None:
        """By the beginning, however long the file is."""
        reader, head = self.make(), _saved(self._content())[:_HEAD_BYTES]
        assert reader.recognizes(head)
        assert reader.recognizes(head + bytes(_HEAD_BYTES - len(head)))

    def test_leaves_other_files_alone(self) -> None:
        """Every reader is asked for every file that isn't the core's own, damaged ones too."""
        reader = self.make()
        weights = {"weight": torch.ones(2)}
        others: Mapping[str, bytes] = {
            "an empty file": b"",
            "random bytes": os.urandom(4096),
            "a state_dict": _saved(weights),
            "a program's own dict": _saved({"state_dict": weights, "epoch": 3}),
            "a state of core": _saved({"format": {"version": 1}, "model": weights}),
            "a pickle": pickle.dumps({"weights": [1.0, 2.0]}),
        }
        assert [name for name, head in others.items() if reader.recognizes(head)] == [], (
            "not of the program"
        )

    def test_leaves_other_folders_alone(self) -> None:
        """Every reader is asked for every folder that isn't the core's own."""
        others: tuple[list[str], ...] = (
            [],
            ["notes.txt"],
            ["config.json", "model.safetensors"],
            ["00000000-00000.data", "00000000-00000.json"],
        )
        found = [
            names for names in others if self.make().recognizes_folder("theirs", names) is not None
        ]
        assert found == [], "not of the program"

    def test_reads_a_file(self, folder: Path) -> None:
        """The core finds the reader, and loads what it has made of the file."""
        content = self._content()
        torch.save(content, folder / "their.ckpt")
        state = load_checkpoint(folder / "their.ckpt")
        assert isinstance(state, dict)
        assert state.keys() == self.make().translate(content).keys()

    @of_trainer
    def test_a_trainer_takes_it(self, folder: Path) -> None:
        """It is the state of a run, whose weights a module gets by their names."""
        torch.save(self.make().translate(self._content()), folder / "ours.ckpt")
        one_device("cpu", is_kept=self.keeps_ranks).run(_load_into_a_module, folder / "ours.ckpt")

    def test_leaves_the_content_as_it_is(self) -> None:
        """`translate` changes nothing, and says the same twice."""
        reader = self.make()
        content = self._content()
        before = _saved(content)
        first, second = (_saved(reader.translate(content)) for _ in range(2))
        assert _saved(content) == before, "translate has changed what it was given"
        assert first == second

    def test_a_damaged_file_is_said(self) -> None:
        """A section that is missing, or of another type, is read or is an error by which the core
        names the file.
        """
        reader = self.make()
        content = self._content()
        for key in content:
            self._assert_said(
                reader,
                {other: value for other, value in content.items() if other != key},
                f"no {key!r}",
            )
            for junk in _JUNK:
                self._assert_said(reader, {**content, key: junk}, f"{key!r} is {junk!r}")

    def _content(self) -> dict[str, Any]:
        if not (content := self.content()):
            pytest.skip("the suite has no `content`, a checkpoint as the program saves it")
        return content

    def _assert_said(self, reader: CheckpointReader, damaged: dict[str, Any], what: str) -> None:
        try:
            reader.translate(copy.deepcopy(damaged))
        except _SAID:
            pass
        except Exception as error:
            raise AssertionError(
                f"{what}, and translate raised {type(error).__name__}: {error}"
            ) from error


def _saved(content: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def _load_into_a_module(rank: Rank, path: Path) -> None:
    weights: Mapping[str, torch.Tensor] = load_checkpoint(path)["model"]
    assert weights, "there are no weights in section 'model'"
    module = _Holder()
    for name, tensor in weights.items():
        *parents, own = name.split(".")
        holder: nn.Module = module
        for parent in parents:
            if not hasattr(holder, parent):
                holder.add_module(parent, nn.Module())
            holder = getattr(holder, parent)
        holder.register_buffer(own, torch.zeros_like(tensor))
    rank.trainer().validate(module, [torch.ones(1)], ckpt_path=path)
    assert all(torch.equal(module.state_dict()[name], tensor) for name, tensor in weights.items())


class _Holder(Module):
    """Has whatever a file has weights for."""

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Nothing: only the weights are looked at."""
