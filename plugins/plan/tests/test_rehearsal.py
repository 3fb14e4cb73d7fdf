"""Programs are planned for by the strategy's own code, without memory or ranks."""

import os
import textwrap
from pathlib import Path

import pytest
import torch
from plan_nets import LAYER_BYTES, WIDTH, Net
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from core import STRATEGY_REGISTRY
from core_ddp import DDPStrategy
from core_plan import plan
from core_plan.fits import offloaded, on_device
from core_plan.rehearsal.known_shapes import KnownShapes

MODEL_BYTES = 2 * LAYER_BYTES


def _plan(make, strategy, devices=2, **options):
    (found,) = plan(make, strategies=[strategy], devices=devices, **options)
    return found


def test_memory_by_kind():
    found = _plan(Net, "single_device", devices=1)
    assert found.failure is None
    # At the peak Adam has its foreach temporaries; its counters are two numbers.
    assert found.memory["parameters"] == found.memory["gradients"] == MODEL_BYTES
    assert found.memory["optimizer"] == 2 * MODEL_BYTES + 8
    assert found.memory["buffers"] == 0
    assert found.peak_bytes == sum(found.memory.values())
    assert found.checkpoint_bytes == 3 * MODEL_BYTES + 8
    assert found.source == "rehearsed"


def test_shapes_that_dtensor_computes_with_have_no_memory():
    alone, sharded = _plan(Net, "single_device", devices=1), _plan(Net, "fsdp", devices=1)
    assert sharded.memory["transient"] == pytest.approx(alone.memory["transient"], abs=64)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x + 1,
        lambda x: x.add_(2.5),
        lambda x: torch.arange(6, out=x.to(torch.int64)[0]),
        lambda x: x.t(),
        lambda x: x[1:, 2:],
        lambda x: x.to(torch.bfloat16),
        lambda x: x.split(2),
        lambda x: x.expand(3, 4, 6),
        lambda x: torch.cat([x, x]),
        lambda x: torch.ops.aten.native_layer_norm(x, [6], None, None, 1e-5),
    ],
)
def test_results_are_those_of_torch(call):
    mode = FakeTensorMode()
    calls = KnownShapes(mode)

    class Knowing(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return calls.call(func, args, kwargs or {})

    with mode:
        tensors = [torch.empty(5, 7)[1:, 1:] for _ in range(3)]
    expected = call(tensors[0])
    with Knowing():
        results = [call(tensor) for tensor in tensors[1:]]

    def described(result, given):
        return [
            (
                type(one),
                one.shape,
                one.stride(),
                one.dtype,
                one.device,
                one.storage_offset(),
                one.untyped_storage().nbytes(),
                one.untyped_storage()._cdata == given.untyped_storage()._cdata,
            )
            for one in ([result] if isinstance(result, torch.Tensor) else result)
        ]

    for tensor, result in zip(tensors[1:], results, strict=True):
        assert described(result, tensor) == described(expected, tensors[0])


@pytest.mark.parametrize("accumulated", [1, 2])
def test_what_is_sent(accumulated):
    found = _plan(Net, "ddp", accumulate_grad_batches=accumulated)
    assert found.failure is None
    assert 0 <= found.sent["allreduce all"] - MODEL_BYTES < 1000, found.sent


def test_offloaded_state_is_in_the_memory_of_the_cpu():
    away, here = (_plan(Net, name) for name in ("fsdp_cpu_offload", "fsdp"))
    assert offloaded(away)["parameters"] == MODEL_BYTES / 2
    assert offloaded(away)["optimizer"] == here.memory["optimizer"]
    assert not {"parameters", "gradients", "optimizer"} & set(on_device(away))
    assert offloaded(here) == {}


@pytest.mark.parametrize("devices", [2, 512])
def test_shards_of_any_number_of_ranks(devices):
    found = (
        _plan(Net, "fsdp", devices=8, num_nodes=devices // 8)
        if devices > 8
        else _plan(Net, "fsdp", devices)
    )
    assert found.failure is None
    assert found.memory["parameters"] == MODEL_BYTES // devices
    assert found.sent["allgather_base data_parallel"] % (MODEL_BYTES // devices) == 0


def test_ranks_of_a_pipeline_rehearse_together():
    found = _plan(Net, "parallel:pipeline=2")
    assert found.failure is None, found.failure
    assert found.memory["parameters"] == LAYER_BYTES
    assert found.sent["send all"] == 8 * WIDTH * 4  # what the second stage gets


@pytest.mark.parametrize(
    "schedule", ["1F1B", pytest.param("ZBVZeroBubble", marks=pytest.mark.slow)]
)
def test_ranks_of_a_schedule_rehearse_together(schedule):
    in_v = schedule == "ZBVZeroBubble"

    class Deep(Net):
        """Has a part for each stage."""

        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(*self.layers, *Net().layers)

    found = _plan(Deep, f"parallel:pipeline=2,schedule={schedule}{',stages_per_rank=2' * in_v}")
    assert (found.failure, found.source) == (None, "rehearsed"), found.assumed
    assert found.memory["parameters"] == 2 * LAYER_BYTES


def test_a_strangers_strategy():
    class Buffered(DDPStrategy):
        """With 3 MiB of its own."""

        def setup_module(self, module):
            self.own = torch.zeros(3 * 2**18)
            return super().setup_module(module)

    STRATEGY_REGISTRY.register("buffered", Buffered)
    plain, own = _plan(Net, "ddp"), _plan(Net, "buffered")
    assert own.memory["transient"] - plain.memory["transient"] == 3 * 2**20
    # Ranks tell each other of signals now and then, by the clock.
    assert own.sent == pytest.approx(plain.sent, abs=1000)


def test_an_operation_that_needs_values_is_named():
    class AsksForValues(Net):
        """Needs to know how many different values there are."""

        def training_step(self, batch):
            found = self.layers(batch)
            return found.mean() * len(torch.unique(found))

    found = _plan(AsksForValues, "single_device", devices=1)
    assert found.source == "run"  # it is small enough
    assert "_unique2" in found.assumed[0]
    assert "test_rehearsal.py:" in found.assumed[0]


def test_all_values_are_finite():
    class AsksForFinite(Net):
        """Skips steps whose loss isn't finite, and reads the loss."""

        def training_step(self, batch):
            loss = super().training_step(batch)
            if not torch.isfinite(loss) or torch.isnan(loss).any():
                return None
            self.seen = loss.item()
            return loss

    found = _plan(AsksForFinite, "single_device", devices=1)
    assert found.failure is None
    assert [text.rpartition(" ")[2] for text in found.assumed] == ["1.0"]
    assert "test_rehearsal.py:" in found.assumed[0]


def test_what_parts_of_a_sequence_mix_is_named_without_the_ranks():
    class Centers(torch.nn.Module):
        """Takes a mean over all positions."""

        def forward(self, x):
            return x - x.mean(1, keepdim=True)

    class Centered(Net):
        """Ends with one."""

        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(self.layers, Centers())

        def training_step(self, batch):
            return self.layers(batch[:, None].expand(-1, 8192, -1)).square().mean()

    found = _plan(Centered, "parallel:context=4096", devices=8, num_nodes=512)
    assert found.failure is not None
    assert "where each of 4096 ranks has a part of the sequence" in found.failure
    assert "it computes mean" in found.failure


def test_refused_as_in_a_run():
    found = _plan(Net, "single_device")
    assert found.failure is not None
    assert "trains on 1 device" in found.failure


@pytest.mark.parametrize("library", ["Trainer", "Fabric"])
def test_a_script_as_it_is(library, tmp_path, monkeypatch):
    programs = {
        "Trainer": """
            import sys
            from pathlib import Path
            import torch
            from core import Trainer
            sys.path.insert(0, {folder!r})
            from plan_nets import Net

            Path("begun-" + sys.argv[1]).touch()
            Trainer(accelerator="gpu", devices=4, strategy="ddp", max_epochs=1).fit(Net())
            Path("ended").touch()
        """,
        "Fabric": """
            import sys
            import torch
            from core import Fabric
            sys.path.insert(0, {folder!r})
            from plan_nets import Net

            fabric = Fabric(accelerator="gpu", devices=4, strategy="fsdp")
            fabric.launch()
            net = Net()
            model, optimizer = fabric.setup(net.layers, net.configure_optimizers())
            for batch in fabric.setup_dataloaders(net.train_dataloader()):
                loss = model(batch).square().mean()
                fabric.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                print(f"loss {{loss.item():.2f}}")
            open("ended", "w").close()
        """,
    }
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    text = textwrap.dedent(programs[library])
    script.write_text(text.format(folder=str(Path(__file__).parent)))
    found = _plan(str(script), "ddp", arguments=["here"])
    assert found.failure is None, found.failure
    assert found.memory["optimizer"] == 2 * MODEL_BYTES + 8
    left = {path.name for path in tmp_path.iterdir()} - {"train.py", "begun-here"}
    assert left == set()


def test_a_script_that_trains_nothing(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("print('nothing')\n")
    found = _plan(str(script), "single_device", devices=1)
    assert found.failure == "The program has ended before its second optimizer step."


def test_this_process_stays_as_it_was():
    before = (
        torch.chunk,
        torch.UntypedStorage.resize_,
        os.environ.copy(),
        torch.distributed.is_initialized(),
    )
    _plan(Net, "fsdp")
    assert before == (
        torch.chunk,
        torch.UntypedStorage.resize_,
        os.environ.copy(),
        torch.distributed.is_initialized(),
    )
