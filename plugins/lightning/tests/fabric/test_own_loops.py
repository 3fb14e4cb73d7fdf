"""FLOPs, hyperparameters and exports, for loops of a program's own. Figures are
Lightning's.
"""

import argparse

import pytest
import torch

import core


def test_flops_are_those_of_forward_and_backward(installed):
    measure = installed("lightning.pytorch.utilities").measure_flops
    with torch.device("meta"):
        model, inputs = torch.nn.Linear(8, 4), torch.randn(2, 8)
    assert measure(model, lambda: model(inputs)) == 2 * 2 * 8 * 4
    assert measure(model, lambda: model(inputs), torch.sum) == 2 * (2 * 2 * 8 * 4)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("min_size", "a1 b4 0 0, a2 b5 1 0"),
        ("max_size", "a1 b4 0 0, a2 b5 1 0, aNone b6 2 0"),
        ("max_size_cycle", "a1 b4 0 0, a2 b5 1 0, a1 b6 2 0"),
        ("sequential", "1 0 0, 2 1 0, 4 0 1, 5 1 1, 6 2 1"),
    ],
)
def test_a_combined_loader_gives_a_program_triples(installed, mode, expected):
    def iter_of(*batches):
        return torch.utils.data.DataLoader(list(batches), batch_size=None)

    combined = installed("lightning.pytorch.utilities").CombinedLoader(
        {"a": iter_of(1, 2), "b": (iter_of(4, 5, 6),)}, mode
    )
    shown = []
    for batch, batch_idx, dataloader_idx in combined:
        both = batch if mode == "sequential" else f"a{batch['a']} b{batch['b'][0]}"
        shown.append(f"{both} {batch_idx} {dataloader_idx}")
    assert ", ".join(shown) == expected
    assert next(iter(combined))[1:] == (0, 0)


def test_a_combined_loader_gives_a_trainer_batches(installed, lit):
    class Model(lit.Plain):
        def training_step(self, batch, batch_idx):
            self.seen.append(sorted(batch))
            return super().training_step(batch["a"], batch_idx)

    net, kind = Model(), installed("lightning.pytorch.utilities").CombinedLoader
    lit.fit(net, train=kind({"a": lit.load(8), "b": lit.load(8)}), max_epochs=1)
    assert net.seen == [["a", "b"]]


def test_hyperparameters_as_loggers_take_them(installed):
    logger = installed("lightning.fabric.utilities.logger")
    nested = {"a": {"b": 1}, "c": [{"d": 2}], "e": [1, 2], "f": argparse.Namespace(g=3)}
    assert logger._flatten_dict(nested) == {"a/b": 1, "c/0/d": 2, "e": [1, 2], "f/g": 3}
    assert logger._convert_params(None) == {}
    assert logger._sanitize_callable_params({"a": dict, "b": lambda: 3, "c": 4}) == {
        "a": "dict",
        "b": 3,
        "c": 4,
    }
    assert logger._sanitize_params({"a": [1], "b": 0.5}) == {"a": "[1]", "b": 0.5}
    assert logger._add_prefix({"a": 1}, "own", "-") == {"own-a": 1}


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("method", ["script", "trace"])
def test_a_module_becomes_torchscript_before_and_after_it_was_trained(lit, boring, method):
    model = boring.BoringModel()
    model.example_input_array = torch.randn(1, 32)
    for _ in range(2):
        model.train().to_torchscript("saved.pt", method=method)
        loaded = torch.jit.load("saved.pt")
        torch.testing.assert_close(
            loaded(model.example_input_array), model(model.example_input_array)
        )
        assert model.training
        lit.make_trainer(max_steps=1).fit(model)


def test_a_trace_needs_an_example(boring):
    with pytest.raises(core.ConfigurationError, match="pass example_inputs="):
        boring.BoringModel().to_torchscript(method="trace")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"patience": 1}, "PATIENCE_EXHAUSTED"),
        ({"stopping_threshold": 4.0}, "STOPPING_THRESHOLD"),
        ({"divergence_threshold": 0.5}, "DIVERGENCE_THRESHOLD"),
    ],
)
def test_early_stopping_names_its_reason(installed, lit, options, reason):
    callbacks = installed("lightning.pytorch.callbacks.early_stopping")
    stopping, again = (
        callbacks.EarlyStopping("val", **options),
        callbacks.EarlyStopping("val", **options),
    )
    assert stopping.stopping_reason is callbacks.EarlyStoppingReason.NOT_STOPPED
    lit.fit(lit.Rising(), max_epochs=3, callbacks=stopping)
    assert stopping.stopping_reason is callbacks.EarlyStoppingReason[reason]
    assert "val" in stopping.stopping_reason_message
    again.load_state_dict(stopping.state_dict())
    assert again.stopping_reason is stopping.stopping_reason
