"""Beyond the kit: models built in parts, offloading, gradients that are dropped, and refusals."""

import functools
import logging
import re
import sys
from datetime import timedelta
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from zero_ranks import CUT, STAGES, loss_of, make_batch, make_model, on_two_ranks

from core import ConfigurationError, Fabric, Module, ModuleError, Trainer, UnsupportedError, WorkerError
from core.checkpoint import TorchCheckpointIO
from core.strategies import STRATEGY_REGISTRY
from core_deepspeed import DeepSpeedStrategy
from core_testing import Backend

QUIET = {
    "accelerator": "cpu",
    "logger": False,
    "enable_progress_bar": False,
    "enable_checkpointing": False,
    "enable_model_summary": False,
}


# formats --------------------------------------------------------------------------------------------------------------


def keep(rank):
    """A buffer that no state has, and a layer that is named; the formats that they have after steps, and warnings."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("core_deepspeed").addHandler(handler)
    fabric = rank.fabric()
    model = make_model()
    model.register_buffer("frequencies", torch.tensor([1.001]), persistent=False)
    model.keep_in_float32 = ("0",)
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.02))
    for step in range(2):
        fabric.backward(loss_of(model, make_batch(step, rank.number)).float())
        optimizer.step()
        optimizer.zero_grad()
    found = model.module.frequencies, {one.dtype for one in model.module.parameters()}
    fabric.teardown()
    return *found, lines


@STAGES
def test_buffers_are_kept_in_float32_and_a_line_says_which_parameters_are_not(stage):
    backend = Backend(lambda: DeepSpeedStrategy(stage), num_processes=2, options={"precision": "bf16-true"})
    found = backend.run(keep)
    for frequencies, dtypes, _ in found:
        assert torch.equal(frequencies, torch.tensor([1.001]))
        assert dtypes == {torch.bfloat16}
    line = r"keeps parameters in float32 \(0\.weight.*\), and DeepSpeed's engine computes with all of them in bfloat16"
    assert [bool(re.search(line, "".join(lines))) for *_, lines in found] == [True, False]


# gradients ------------------------------------------------------------------------------------------------------------


def accumulate_and_drop(rank):
    """Drops what backward has accumulated, then accumulates two batches, without a word about the window."""
    fabric = rank.fabric()
    model = make_model()
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.02))
    share = rank.number if fabric.world_size == 2 else None
    for step in range(4):
        fabric.backward(loss_of(model, make_batch(100 + step, share)) * 1000)
        optimizer.zero_grad()
        for batch in (2 * step, 2 * step + 1):
            fabric.backward(loss_of(model, make_batch(batch, share)) / 2)
        optimizer.step()
        optimizer.zero_grad()
        optimizer.step()  # without gradients: nothing to do
    weights = fabric.strategy.get_module_state_dict(model.module, layout="full")
    fabric.teardown()
    return weights


@pytest.mark.parametrize(
    ("stage", "offload"), [(stage, offload) for stage in range(4) for offload in (False, True)[: stage + 1]]
)
def test_gradients_are_dropped_and_accumulated(stage, offload):
    expected = Backend(lambda: "single_device").run(accumulate_and_drop)[0]
    found = on_two_ranks(accumulate_and_drop, stage=stage, offload_optimizer=offload)[0]
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)


def norm_and_clip(rank, by_value):
    fabric = rank.fabric()
    model = make_model()
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    fabric.backward(loss_of(model, make_batch(0, rank.number if fabric.world_size == 2 else None)))
    norm = fabric.clip_gradients(model, optimizer, **({"clip_val": 0.1} if by_value else {"max_norm": 0.1}))
    optimizer.step()
    weights = fabric.strategy.get_module_state_dict(model.module, layout="full")
    fabric.teardown()
    return norm, weights


@STAGES
def test_clipping_by_hand_gives_the_norm(stage):
    norm, weights = Backend(lambda: "single_device").run(norm_and_clip, False)[0]
    results = on_two_ranks(norm_and_clip, False, stage=stage)
    for found, _ in results:
        torch.testing.assert_close(found, norm, rtol=1e-5, atol=0)
    for name, value in weights.items():
        torch.testing.assert_close(results[0][1][name], value, rtol=1e-5, atol=1e-6)


def autocast(rank):
    """Two steps; what the forward computes in, what weights are in, and them; and what is left of it in the process."""
    fabric = rank.fabric()
    model = make_model()
    user_model, formats = model, []
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.02))
    first = next(part for part in user_model.modules() if isinstance(part, nn.Linear))
    first.register_forward_hook(lambda layer, inputs, output: formats.append(str(output.dtype)))
    for step in range(2):
        fabric.backward(loss_of(model, make_batch(step, rank.number if fabric.world_size == 2 else None)))
        formats.append(str(next(user_model.parameters()).dtype))
        optimizer.step()
        optimizer.zero_grad()
    weights = fabric.strategy.get_module_state_dict(model.module, layout="full")
    fabric.teardown()
    marked = [name for name, parameter in user_model.named_parameters() if hasattr(parameter, "comm_dtype")]
    of_library = sys.modules.get("deepspeed.runtime.torch_autocast")
    return formats, weights, (marked, of_library is not None and of_library.is_autocast_initialized())


@STAGES
def test_the_block_of_autocast_computes_in_bfloat16_from_float32(stage):
    """As `bf16-mixed` does on one device, and nothing of it stays on the user's parameters or in the process."""
    options = {"precision": "bf16-mixed"}
    expected = Backend(lambda: "single_device", options=options).run(autocast)[0]
    config = {"torch_autocast": {"enabled": True}, **(CUT if stage == 3 else {})}
    make = functools.partial(DeepSpeedStrategy, stage=stage, config=config)
    formats, weights, left = Backend(make, num_processes=2, data_parallel_size=2, options=options).run(autocast)[0]
    assert formats == expected[0] == ["torch.bfloat16", "torch.float32"] * 2
    for name, value in expected[1].items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=0.01)
    assert left == ([], False)


def autocast_on_a_gpu(rank):
    torch.set_autocast_enabled("cuda", True)  # where DeepSpeed looks, whatever the device is
    return autocast(rank)


@pytest.mark.parametrize("stage", [0, 3])
def test_a_forward_stays_in_the_autocast_that_is_around_it(stage):
    ranks = Backend(functools.partial(DeepSpeedStrategy, stage=stage), options={"precision": "bf16-mixed"})
    assert ranks.run(autocast_on_a_gpu)[0][0] == ["torch.bfloat16"] * 4


def test_clipping_by_value_is_refused():
    with pytest.raises(WorkerError, match="clips gradients by their 2-norm only"):
        on_two_ranks(norm_and_clip, True)
    with pytest.raises(UnsupportedError, match="can't clip gradients by value"):
        Trainer(strategy="deepspeed", devices=2, gradient_clip_val=1.0, gradient_clip_algorithm="value", **QUIET)


# parameters and buffers -----------------------------------------------------------------------------------------------


class Uncommon(nn.Module):
    """A factor, weights that do not lie row after row, a buffer, and beside a scalar a parameter of no size."""

    def __init__(self, factor):
        super().__init__()
        self.factor = nn.Parameter(factor)
        self.weight = nn.Parameter(torch.linspace(-1, 1, 15).reshape(5, 3).t())
        if not factor.dim():
            self.nothing = nn.Parameter(torch.zeros(0))
        self.register_buffer("shift", torch.ones(5))

    def forward(self, inputs):
        return (inputs @ self.weight * self.factor + self.shift).square().sum(1, keepdim=True)


def step_uncommon(rank, factor):
    fabric, model = rank.fabric(), Uncommon(factor + rank.number)
    model.shift.add_(rank.number)  # as if each rank had begun with its own
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.02))
    for step in range(3):
        fabric.backward(model(make_batch(step, None)[:, :3]).mean())
        optimizer.step()
        optimizer.zero_grad()
    state = fabric.strategy.get_module_state_dict(model.module, layout="full")
    shift = model.module.shift.clone()
    fabric.teardown()
    return state, shift, model.module.factor.shape


@STAGES
def test_uncommon_parameters_train_as_on_one_device(stage):
    factor = torch.tensor([1.5] if stage == 3 else 1.5)
    expected, *_ = Backend(lambda: "single_device").run(step_uncommon, factor)[0]
    results = on_two_ranks(step_uncommon, factor, stage=stage)
    for name, value in expected.items():
        torch.testing.assert_close(results[0][0][name], value, rtol=1e-5, atol=1e-6)
    for _, shift, shape in results:
        assert shift.tolist() == [1.0] * 5
        assert shape == factor.shape


def test_a_scalar_at_stage_3():
    with pytest.raises(WorkerError, match=r"'factor' of Uncommon is a parameter of shape \(\), .* or use stage=2"):
        on_two_ranks(step_uncommon, torch.tensor(1.5), stage=3)


class Apart(Module):
    """Does what others don't, or what all do, in its last batch on rank 1."""

    def __init__(self, returns_none, is_alone):
        super().__init__()
        self.layers, self.returns_none, self.is_alone = make_model(), returns_none, is_alone

    def training_step(self, batch, batch_idx):
        hidden, is_apart = self.layers[0](batch[0]).tanh(), batch_idx == 2
        if not is_apart or (self.is_alone and self.trainer.global_rank == 0):
            return functional.mse_loss(self.layers[2](hidden), batch[0].sum(1, keepdim=True).sin())
        return None if self.returns_none else hidden.square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit_apart(rank, *how):
    data = TensorDataset(torch.cat([make_batch(step, None) for step in range(3)]))
    trainer, module = rank.trainer(max_epochs=1), Apart(*how)
    trainer.fit(module, DataLoader(data, batch_size=8 // rank.backend.data_parallel_size))
    return module.state_dict()


SOON = timedelta(seconds=60)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_parameters_that_one_rank_alone_leaves_out_are_named(stage):
    message = (
        r"^Rank 1 failed with .*ModuleError: The loss does not depend on '\w+.2.weight', '\w+.2.bias' on rank 1, and "
        r"on rank 0 it does, or leaves out others: DeepSpeedStrategy exchanges gradients of the same parameters on"
    )
    with pytest.raises(WorkerError, match=message):
        on_two_ranks(fit_apart, False, True, stage=stage, timeout=SOON)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_parameters_that_all_ranks_leave_out_stay(stage):
    assert_left_out_as_on_one_device(stage=stage)


@pytest.mark.parametrize("stage", [1, 2])
def test_parameters_that_all_ranks_leave_out_stay_when_offloaded(stage):
    config = {"zero_force_ds_cpu_optimizer": False}
    assert_left_out_as_on_one_device(stage=stage, offload_optimizer=True, config=config)


def assert_left_out_as_on_one_device(**options):
    single = Backend(lambda: "single_device").run(fit_apart, False, False)[0]
    for name, found in on_two_ranks(fit_apart, False, False, timeout=SOON, **options)[0].items():
        torch.testing.assert_close(found, single[name], rtol=1e-5, atol=1e-6)


def test_parameters_that_one_rank_leaves_out_count_as_zeros_at_stage_0():
    first, second = on_two_ranks(fit_apart, False, True, stage=0)
    assert all(torch.equal(value, second[name]) for name, value in first.items())


@STAGES
def test_a_step_without_a_loss_on_one_rank_alone_is_named(stage):
    message = (
        r"^Rank 1 failed with .*ModuleError: Apart.training_step returned None for batch 2 of epoch 0 on rank 1, and"
    )
    with pytest.raises(WorkerError, match=message):
        on_two_ranks(fit_apart, True, True, stage=stage, timeout=SOON)


# stage 3 --------------------------------------------------------------------------------------------------------------


class BuiltLate(Module):
    """Its layers are made in `configure_model`, where stage 3 cuts each as soon as it is there."""

    def configure_model(self):
        if not hasattr(self, "layers"):
            self.layers = make_model()
            self.sizes = [parameter.numel() for parameter in self.layers.parameters()]

    def training_step(self, batch, batch_idx):
        return loss_of(self.layers, batch[0])

    def predict_step(self, batch, batch_idx):
        return self.layers(batch[0])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.02)


def fit_and_predict(rank):
    module = BuiltLate()
    data = TensorDataset(torch.cat([make_batch(step, None) for step in range(4)]))
    loader = DataLoader(data, batch_size=8 // rank.backend.data_parallel_size)
    rank.trainer(max_epochs=2).fit(module, loader)
    predictions = rank.trainer().predict(module, loader)
    return module.sizes, module.state_dict(), torch.cat([part.float() for part in predictions])


def test_what_configure_model_builds_is_cut_at_once():
    whole, weights, predictions = Backend(lambda: "single_device").run(fit_and_predict)[0]
    results = on_two_ranks(fit_and_predict, stage=3)
    for sizes, found, _ in results:
        assert sum(whole) > 0
        assert sizes == [0] * len(whole)  # as DeepSpeed leaves them between uses
        for name, value in weights.items():
            torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(results[0][2], predictions, rtol=1e-5, atol=1e-6)


class Judged(BuiltLate):
    def validation_step(self, batch, batch_idx):
        self.log("loss", loss_of(self.layers, batch[0]), sync_dist=True)

    test_step = validation_step


def evaluate_a_checkpoint(rank, path):
    """Losses by `validate` and `test`, and predictions, of modules that have never been trained here."""
    data = TensorDataset(torch.cat([make_batch(step, None) for step in range(4)]))
    loader = DataLoader(data, batch_size=8 // rank.backend.data_parallel_size)
    trainer = rank.trainer(max_epochs=1)
    trainer.fit(Judged(), loader, loader)
    trainer.save_checkpoint(path, weights_only=True)
    (validated,) = rank.trainer().validate(Judged(), loader, ckpt_path=path)
    (tested,) = rank.trainer().test(Judged(), loader, ckpt_path=path)
    predicted = rank.trainer().predict(Judged(), loader, ckpt_path=path)
    return torch.tensor([validated["loss"], tested["loss"]]), torch.cat([part.float() for part in predicted])


@STAGES
def test_a_checkpoint_is_evaluated(tmp_path, stage):
    expected, predictions = Backend(lambda: "single_device").run(evaluate_a_checkpoint, tmp_path / "one")[0]
    results = on_two_ranks(evaluate_a_checkpoint, tmp_path / "two", stage=stage)
    for found, _ in results:
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(results[0][1], predictions, rtol=1e-5, atol=1e-6)


def evaluate_twice(rank):
    """A module that is evaluated with its parameters cut, twice, and the weights that it has then."""
    layers = make_model()
    before = {name: value.clone() for name, value in layers.state_dict().items()}
    outputs = []
    for _ in range(2):
        fabric = rank.fabric()
        model = fabric.setup(layers)
        with torch.no_grad():
            outputs.append(model(make_batch(0, rank.number)).float())
        fabric.teardown()
    return before, layers.state_dict(), outputs


def test_an_evaluation_in_16_bits_rounds_no_weight():
    """Without an optimizer an engine has no masters, and would leave the weights as it has computed with them."""
    make = functools.partial(DeepSpeedStrategy, 3, config=CUT)
    options = {"precision": "bf16-mixed"}
    for before, after, (first, second) in Backend(make, num_processes=2, data_parallel_size=2, options=options).run(
        evaluate_twice
    ):
        torch.testing.assert_close(after, before, rtol=0, atol=0)
        torch.testing.assert_close(second, first, rtol=0, atol=0)


def load_after_an_evaluation(rank):
    """Trains, evaluates, which leaves parameters gathered, and again with other weights."""
    fabric = rank.fabric()
    model = make_model()
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    batch, outputs = make_batch(0, rank.number), []
    for _ in range(2):
        fabric.backward(loss_of(model, batch))
        optimizer.step()
    for factor in (1.0, 0.0):
        with torch.no_grad():
            outputs.append(model(batch))
        state = fabric.strategy.get_module_state_dict(model.module, layout="full")
        state = fabric.broadcast({name: value * factor for name, value in state.items()})
        fabric.strategy.load_module_state_dict(model.module, state)
    with torch.no_grad():
        outputs.append(model(batch))
    fabric.teardown()
    return outputs


def drop_a_fabric(rank):
    """Lets Fabric go on one rank, while the other still trains with its own."""
    torch.manual_seed(0)
    fabric, layer = rank.fabric(), nn.Linear(4, 4)
    model, optimizer = fabric.setup(layer, torch.optim.SGD(layer.parameters(), lr=0.1))
    weights = fabric.strategy.get_module_state_dict(layer, layout="full")
    strategy = fabric.strategy
    strategy.barrier()
    if rank.number:
        strategy.session.release_alone()  # what a Fabric that is collected calls
    found = strategy.all_gather(torch.tensor(float(rank.number))).tolist()
    strategy.barrier()
    del model, optimizer, weights
    return found


def test_a_fabric_that_is_collected_on_one_rank_gathers_nothing():
    assert on_two_ranks(drop_a_fabric, stage=3) == [[0.0, 1.0], [0.0, 1.0]]


def test_weights_that_are_loaded_after_an_evaluation_are_used():
    for first, second, third in on_two_ranks(load_after_an_evaluation, stage=3):
        assert torch.equal(first, second)
        assert second.any()
        assert not third.any()


def fit_with_summary(rank):
    loader = DataLoader(TensorDataset(make_batch(0, None)), batch_size=4)
    rank.trainer(max_epochs=1, enable_model_summary=True).fit(BuiltLate(), loader)


def test_the_summary_counts_what_is_cut(caplog, capfd):
    on_two_ranks(fit_with_summary, stage=3)
    assert re.search(r"50\s+trainable parameters", capfd.readouterr().out)


# offloading -----------------------------------------------------------------------------------------------------------


def adam_and_scheduler(rank):
    fabric, model = rank.fabric(), make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    model, optimizer = fabric.setup(model, optimizer)
    rates = []
    for step in range(4):
        fabric.backward(loss_of(model, make_batch(step, rank.number)))
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    kind = type(fabric.strategy.optimizers[0]).__name__
    fabric.teardown()
    return kind, rates


def test_offloaded_adam_is_deepspeeds_and_schedulers_go_on(caplog):
    with caplog.at_level(logging.INFO, "core_deepspeed"):
        results = on_two_ranks(adam_and_scheduler, offload_optimizer=True)
    assert results == [("DeepSpeedCPUAdam", [0.02, 0.01, 0.01, 0.005])] * 2


def step_offloaded(rank, make_optimizer):
    torch.manual_seed(0)
    fabric, model = rank.fabric(), make_model()
    model, optimizer = fabric.setup(model, make_optimizer(model.parameters()))
    for step in range(5):
        fabric.backward(loss_of(model, make_batch(step, None)))
        optimizer.step()
        optimizer.zero_grad()
    kind = type(fabric.strategy.optimizers[0]).__name__
    weights = fabric.strategy.get_module_state_dict(model.module, layout="full")
    fabric.teardown()
    return kind, weights


def a_fused_adam(parameters):
    from deepspeed.ops.adam import FusedAdam

    return FusedAdam(parameters, lr=0.02, weight_decay=0.3, adam_w_mode=False)


def test_an_adam_keeps_its_weight_decay_when_it_is_offloaded(monkeypatch):
    # Its kernels are for the memory of a GPU: they are compiled when it is made, and aren't called.
    monkeypatch.setattr("deepspeed.ops.adam.fused_adam.FusedAdamBuilder.load", lambda self: Mock())
    decoupled = functools.partial(torch.optim.Adam, lr=0.02, weight_decay=0.3, decoupled_weight_decay=True)
    coupled = functools.partial(torch.optim.Adam, lr=0.02, weight_decay=0.3)
    for offloaded, alone in ((decoupled, decoupled), (coupled, coupled), (a_fused_adam, coupled)):
        _, expected = Backend(lambda: "single_device").run(step_offloaded, alone)[0]
        kind, found = on_two_ranks(step_offloaded, offloaded, offload_optimizer=True)[0]
        assert kind == "DeepSpeedCPUAdam"
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)


# refusals -------------------------------------------------------------------------------------------------------------


def set_up(rank, kind, dtype, **options):
    fabric, model = rank.fabric(), make_model().to(dtype)
    fabric.setup(model, getattr(torch.optim, kind)(model.parameters(), **options))


@pytest.mark.parametrize(
    ("kind", "dtype", "message"),
    [
        ("Adafactor", torch.float32, "Adafactor looks at whole tensors"),
        ("Adagrad", torch.float32, "DeepSpeed makes another Adagrad"),
        ("AdamW", torch.float64, r"are of torch\.float64"),
    ],
)
def test_optimizers_that_would_step_wrong(kind, dtype, message):
    with pytest.raises(WorkerError, match=message):
        on_two_ranks(set_up, kind, dtype)


def set_up_deepspeeds_own(rank, what):
    fabric, model = rank.fabric(), make_model()
    if what == "experts":
        from deepspeed.moe.layer import MoE

        model = torch.nn.Sequential(MoE(4, torch.nn.Linear(4, 4), num_experts=2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if what == "Muon":
        from deepspeed.runtime.zero.muon.muon_optimizer import MuonWithAuxAdam

        optimizer = MuonWithAuxAdam([{"params": [one], "use_muon": one.ndim == 2} for one in model.parameters()])
    fabric.setup(model, optimizer)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("Muon", "MuonWithAuxAdam looks at whole tensors.* return torch.optim.Muon, under strategy='fsdp'"),
        ("experts", "'0' of Sequential is deepspeed.moe.layer.MoE, which .* isn't supported. strategy='parallel'"),
    ],
)
def test_what_of_deepspeed_is_not_supported(what, message):
    with pytest.raises(WorkerError, match=message):
        on_two_ranks(set_up_deepspeeds_own, what)


def test_an_optimizer_that_no_engine_steps():
    with pytest.raises(WorkerError, match=r"LBFGS evaluates the loss several times in a step, .* strategy='ddp'"):
        on_two_ranks(set_up, "LBFGS", torch.float32, stage=0)


def set_up_embedding(rank):
    fabric, model = rank.fabric(), torch.nn.Embedding(4, 3, sparse=True)
    fabric.setup(torch.nn.Sequential(model), torch.optim.SGD(model.parameters(), lr=0.1))


def test_sparse_gradients():
    with pytest.raises(WorkerError, match=r"'0' of Sequential gives sparse gradients.* sparse=False"):
        on_two_ranks(set_up_embedding)


def unfreeze_and_add(rank):
    fabric, model = rank.fabric(), make_model()
    model[0].requires_grad_(False)
    made = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    wrapped, optimizer = fabric.setup(model, made)
    with pytest.raises(ConfigurationError, match=r"steps no others\. Give it all groups before"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    fabric.backward(loss_of(wrapped, make_batch(0, rank.number)))
    optimizer.step()
    model[0].requires_grad_(True)
    with pytest.raises(ConfigurationError, match=r"parameter '0\.\w+' gets gradients, and was frozen when"):
        fabric.backward(loss_of(wrapped, make_batch(0, rank.number)))
    model[2].requires_grad_(False)
    kept = fabric.strategy.get_optimizer_state_dict(fabric.strategy.optimizers[0])
    fabric.teardown()
    loss_of(model, make_batch(0, None)).backward()
    made.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    return "2.weight" in kept["state"] or rank.number > 0


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_what_an_optimizer_does_not_take_any_more(stage):
    assert all(on_two_ranks(unfreeze_and_add, stage=stage))


def unfreeze_and_go_on(rank):
    fabric, model = rank.fabric(), make_model()
    model[0].bias.requires_grad_(False)
    model[2].requires_grad_(False)
    wrapped, optimizer = fabric.setup(model, torch.optim.RMSprop(model[:2].parameters(), lr=0.1))
    for step, group in enumerate((model[2].parameters(), None, None)):
        fabric.backward(loss_of(wrapped, make_batch(step, rank.number if fabric.world_size == 2 else None)))
        optimizer.step()
        optimizer.zero_grad()
        if group is not None:
            optimizer.add_param_group({"params": group, "lr": 0.05})
        model.requires_grad_(True)
    kept = fabric.strategy.get_optimizer_state_dict(fabric.strategy.optimizers[0])
    weights = fabric.strategy.get_module_state_dict(model, layout="full")
    fabric.teardown()
    return {**weights, **{f"{name}.square_avg": entry["square_avg"] for name, entry in kept["state"].items()}}


def test_at_stage_0_an_optimizer_is_the_users_own():
    """It may be one that looks at whole tensors, be given another group, and parameters may be unfrozen."""
    expected = Backend(lambda: "single_device").run(unfreeze_and_go_on)[0]
    found = on_two_ranks(unfreeze_and_go_on, stage=0)[0]
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)


def set_up_statistics(rank, **options):
    fabric, model = rank.fabric(**options), torch.nn.Sequential(make_model(), torch.nn.BatchNorm1d(1))
    model, _ = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loss = model(make_batch(0, None)).square().mean()
    fabric.teardown()
    return loss.isfinite().item()


def test_running_statistics_in_another_format_than_weights():
    in_bf16 = functools.partial(set_up_statistics, precision="bf16-mixed")
    with pytest.raises(WorkerError, match=r"'1' is a BatchNorm1d: .*'buffer_dtype': 'bf16'.* precision='bf16-true'"):
        on_two_ranks(in_bf16)
    assert on_two_ranks(in_bf16, config={"data_types": {"buffer_dtype": "bf16"}}) == [True, True]
    assert on_two_ranks(functools.partial(set_up_statistics, precision="bf16-true")) == [True, True]


def backward_of_nobody(rank):
    fabric = rank.fabric()
    unlike = nn.Linear(*((4, 6) if rank.number else (6, 4)), bias=False)  # as many elements
    with pytest.raises(ModuleError, match=r"'weight': \(4, 6\) float32 on rank 0; \(6, 4\) float32 on rank 1"):
        fabric.setup(unlike, torch.optim.SGD(unlike.parameters(), lr=0.1))
    for _ in range(2):
        model = make_model()
        model, _ = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    fabric.backward(loss_of(model, make_batch(0, rank.number)))


def test_modules_that_differ_are_refused_and_a_loss_of_several_says_whose_it_is():
    with pytest.raises(WorkerError, match=r"fabric\.backward\(loss, model=model\)"):
        on_two_ranks(backward_of_nobody)


@pytest.mark.parametrize(
    ("config", "arguments", "message"),
    [
        ({"gradient_accumulation_steps": 4}, {"accumulate_grad_batches": 2}, "= 4, and accumulate_grad_batches=2"),
        ({"gradient_clipping": 1.0}, {"gradient_clip_val": 0.5}, "= 1.0, and gradient_clip_val=0.5"),
        ({"train_micro_batch_size_per_gpu": 3}, {}, "= 3, and the loader's batch_size=4"),
    ],
)
def test_a_config_that_contradicts_the_trainer(config, arguments, message):
    strategy = DeepSpeedStrategy(start_method="fork", config=config)
    trainer = Trainer(strategy=strategy, devices=2, max_epochs=1, **arguments, **QUIET)
    with pytest.raises(WorkerError, match=message) as failure:
        trainer.fit(BuiltLate(), DataLoader(TensorDataset(make_batch(0, None)), batch_size=4))
    assert ConfigurationError.__name__ in str(failure.value)


def set_up_plainly(rank):
    set_up(rank, "SGD", torch.float32, lr=0.1)


def test_a_window_in_the_config_of_a_loop_by_hand():
    with pytest.raises(WorkerError, match="your own loop decides when the optimizer steps"):
        on_two_ranks(set_up_plainly, config={"gradient_accumulation_steps": 4})


def test_another_optimizer_than_zeros():
    strategy = DeepSpeedStrategy(1, config={"data_types": {"grad_accum_dtype": "fp32"}})
    with pytest.raises(ConfigurationError, match="an optimizer of another make at stage 1"):
        Fabric(strategy=strategy, accelerator="cpu", devices=1, precision="bf16-mixed")


def test_unknown_options_are_refused():
    with pytest.raises(ConfigurationError, match="Did you mean 'offload_optimizer'"):
        DeepSpeedStrategy(offload_optimiser=True)
    with pytest.raises(ConfigurationError, match="expected 'canonical' or 'native'"):
        DeepSpeedStrategy(deepspeed_checkpoint="other")
    with pytest.raises(ConfigurationError, match="Leave the option out"):
        DeepSpeedStrategy(load_full_weights=False)
    native = DeepSpeedStrategy(1, deepspeed_checkpoint="native", checkpoint_io=TorchCheckpointIO())
    with pytest.raises(ConfigurationError, match="engine write the checkpoints, and TorchCheckpointIO was given to"):
        Fabric(strategy=native, accelerator="cpu", devices=1)
    assert Fabric(strategy="deepspeed_stage_1", accelerator="cpu", devices=1).strategy.stage == 1


def test_the_stage_of_a_config():
    config = {"zero_optimization": {"stage": 3}}
    assert DeepSpeedStrategy(config=config).stage == DeepSpeedStrategy(3, config=config).stage == 3
    with pytest.raises(ConfigurationError, match="stage = 3, and stage=2"):
        STRATEGY_REGISTRY.create("deepspeed_stage_2", config=config)


def load_in_place(rank, path):
    """True if the optimizer's tensors are the same ones after a load, and hold what was saved."""
    fabric = rank.fabric()
    module = make_model()
    model, optimizer = fabric.setup(module, torch.optim.Adam(module.parameters()))
    fabric.backward(loss_of(model, make_batch(0, rank.number)), model=model)
    optimizer.step()
    optimizer.zero_grad()
    fabric.save(path, {"model": model, "optimizer": optimizer})
    (engine,) = fabric.strategy.engines
    state = getattr(engine.zero, "optimizer", engine.zero).state  # at stage 0 nothing is around the user's optimizer
    moments = [entry[key] for entry in state.values() for key in ("exp_avg", "exp_avg_sq")]
    expected = [moment.clone() for moment in moments]
    for moment in moments:
        moment.zero_()
    fabric.load(path, {"model": model, "optimizer": optimizer})
    state = getattr(engine.zero, "optimizer", engine.zero).state
    after = [entry[key] for entry in state.values() for key in ("exp_avg", "exp_avg_sq")]
    found = all(one is other for one, other in zip(moments, after, strict=True)), len(moments)
    assert all(map(torch.equal, after, expected))
    fabric.teardown()
    return found


@pytest.mark.parametrize(("stage", "number"), [(0, 8), (1, 2), (3, 2)])
def test_moments_are_filled_where_they_are(stage, number, tmp_path):
    assert on_two_ranks(load_in_place, tmp_path / "last.ckpt", stage=stage) == [(True, number)] * 2
