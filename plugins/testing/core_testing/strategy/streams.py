"""The weights are streamed whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from core_testing.cases import Case
from core_testing.marks import of_trainer
from core_testing.networks import make_loader
from core_testing.strategy.base import StrategySuite
from core_testing.trainer_names import Callback

if TYPE_CHECKING:
    from torch import Tensor

    from core_testing.ranks import Rank


class StreamTests(StrategySuite):
    """An engine that serves the model gets its weights by `trainer.weights()`, whatever the
    strategy made of them.
    """

    @of_trainer
    def test_streams_whole_weights(self) -> None:
        """After each step all ranks are given the same whole tensors, which are those of the
        model's state.
        """
        first, *others = self.run(_stream, self.adapted(Case("streamed")))
        for step, streamed in first.streamed.items():
            expected = first.states[step]
            assert list(streamed) == [name for name in expected if name in streamed], (
                "not in the state's order"
            )
            assert streamed.keys() == expected.keys()
            for name, tensor in streamed.items():
                what = f"{name!r} as it is streamed after step {step}"
                assert torch.equal(tensor, expected[name]), (
                    f"{what} isn't that of get_module_state_dict"
                )
                for rank, other in enumerate(others, start=1):
                    assert torch.equal(tensor, other.streamed[step][name]), (
                        f"{what} is another one on rank {rank}"
                    )
        begun, *_, ended = first.streamed.values()
        assert any(not torch.equal(begun[name], tensor) for name, tensor in ended.items()), (
            "nothing has trained"
        )
        for found in (first, *others):
            assert found.described == {
                name: (tensor.dtype, tensor.shape) for name, tensor in begun.items()
            }


@dataclass
class _Streamed(Callback):
    """Keeps what is streamed after each step, what the state is on rank 0, and what was
    described.
    """

    streamed: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    states: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    described: dict[str, tuple[torch.dtype, tuple[int, ...]]] = field(default_factory=dict)

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stream, from the second step on by an object that was made before."""
        if batch_idx == 0:
            self._stream = trainer.weights()
            self.described = {
                name: (dtype, shape) for name, dtype, shape in self._stream.metadata()
            }
        self.streamed[batch_idx + 1] = {name: tensor.cpu().clone() for name, tensor in self._stream}
        state = trainer.strategy.get_module_state_dict(module, layout="full")
        self.states[batch_idx + 1] = {
            name: tensor.cpu().clone()
            for name, tensor in state.items()
            if isinstance(tensor, torch.Tensor)
        }


def _stream(rank: Rank, case: Case) -> _Streamed:
    callback = _Streamed()
    trainer = rank.trainer(callbacks=callback, max_steps=3, max_epochs=1)
    trainer.fit(case.network(case), make_loader(case, rank.backend.data_parallel_size))
    return _Streamed(callback.streamed, callback.states, callback.described)
