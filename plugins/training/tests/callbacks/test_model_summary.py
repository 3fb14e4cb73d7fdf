import pytest
import torch
from torch import nn

from core import ConfigurationError, Module
from core.callbacks import ModelSummary
from core_training.callbacks.layer_summary import summarize
from core_training.callbacks.model_summary import shorten
from support.tiny import Tiny, loader, make_trainer


class Nested(Tiny):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 3), nn.Dropout(), nn.Linear(3, 2))
        self.body[0].requires_grad_(False)
        self.body[1].eval()

    def forward(self, x):
        return self.layer(self.body(x))


class WithExample(Nested):
    example_input_array = property(lambda self: torch.zeros(5, 2).uniform_())


def summary_of(tmp_path, capsys, module, *callbacks):
    trainer = make_trainer(tmp_path, *callbacks, enable_model_summary=True, max_steps=1)
    trainer.fit(module, loader())
    return capsys.readouterr().out.splitlines()


def test_by_default_the_children_of_the_module(tmp_path, capsys):
    assert summary_of(tmp_path, capsys, Nested()) == [
        "   name   type        params  mode",
        "-----------------------------------",
        "0  layer  Linear           3  train",
        "1  body   Sequential      17  train",
        "-----------------------------------",
        "11        trainable parameters",
        "9         frozen parameters",
        "80 B      of memory for them",
        "6         modules",
    ]


def test_parameters_of_the_modules_own_have_a_row(tmp_path, capsys):
    class WithScale(Nested):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(5))

    assert summary_of(tmp_path, capsys, WithScale())[2:5] == [
        "0  layer      Linear           3  train",
        "1  body       Sequential      17  train",
        "2  (its own)  WithScale        5  train",
    ]
    assert summarize(WithScale(), max_depth=0).layers == []


def test_a_class_that_torch_makes_of_the_users_has_the_users_name():
    module = Nested()
    nn.utils.parametrizations.weight_norm(module.layer)
    assert [layer.kind for layer in summarize(module).layers] == ["Linear", "Sequential"]


def test_units_where_there_are_some(tmp_path, capsys):
    class Deep(Tiny):
        def __init__(self):
            super().__init__()
            self.body = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])

    lines = summary_of(tmp_path, capsys, Deep())
    assert lines[-1] == "units: 2 x Linear (body.0 ... 1), from its largest ModuleList"


def test_with_an_example_sizes_and_operations_too(tmp_path, capsys):
    lines = summary_of(tmp_path, capsys, WithExample())
    assert lines[0].split() == ["name", "type", "params", "mode", "FLOPs", "in", "out"]
    assert lines[2].split() == [
        "0",
        "layer",
        "Linear",
        "3",
        "train",
        "20",
        "[5,",
        "2]",
        "[5,",
        "1]",
    ]
    # 2 * batch * in * out operations a layer
    assert "140       floating-point operations in a forward of the example" in lines


@pytest.mark.parametrize(
    "example",
    [(torch.zeros(1, 2), torch.zeros(1, 2)), {"y": torch.zeros(1, 2), "x": torch.zeros(1, 2)}],
)
def test_examples_of_several_arguments(tmp_path, capsys, example):
    class Two(Tiny):
        example_input_array = example

        def forward(self, x, y=None):
            return self.layer(x if y is None else x + y)

    assert "4         floating-point operations in a forward of the example" in summary_of(
        tmp_path, capsys, Two()
    )


@pytest.mark.parametrize(
    ("depth", "names"),
    [(0, []), (1, ["layer", "body"]), (-1, ["layer", "body", "body.0", "body.1", "body.2"])],
)
def test_depth(tmp_path, capsys, depth, names):
    lines = summary_of(tmp_path, capsys, Nested(), ModelSummary(max_depth=depth))
    assert [line.split()[1] for line in lines if line.endswith(("train", "eval"))] == names


def test_looking_changes_nothing(tmp_path):
    module = WithExample()
    modes = [child.training for child in module.modules()]
    before = torch.get_rng_state()
    trainer = make_trainer(tmp_path, enable_model_summary=True, max_steps=0)
    trainer.fit(module, loader())
    assert torch.equal(before, torch.get_rng_state())
    assert [child.training for child in module.modules()] == modes
    assert not any(child._forward_hooks for child in module.modules())


def test_lazy_layers_are_named():
    class Lazy(Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.LazyLinear(1)

    summary = summarize(Lazy())
    assert summary.has_lazy
    assert summary.num_parameters == 0


def test_lazy_layers_that_the_example_has_made_are_counted():
    class Lazy(Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.LazyLinear(1)

        def forward(self, x):
            return self.layer(x)

    module = Lazy()
    (layer,) = summarize(module, run_example=lambda: module(torch.ones(5, 2))).layers
    assert (layer.kind, layer.num_parameters) == ("Linear", 3)


def test_shared_parameters_are_counted_once():
    module = Nested()
    module.again = module.layer
    assert summarize(module).num_parameters == summarize(Nested()).num_parameters


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.0 K"),
        (1_234_567, "1.2 M"),
        (7e9, "7.0 B"),
        (10**18, "1000.0 P"),
    ],
)
def test_shorten(number, text):
    assert shorten(int(number)) == text


def test_what_contradicts_it(tmp_path):
    with pytest.raises(
        ConfigurationError, match=r"enable_model_summary=False, and callbacks has a ModelSummary"
    ):
        make_trainer(tmp_path, ModelSummary())
    with pytest.raises(
        ConfigurationError, match=r"ModelSummary\(max_depth=-2\): expected 0 or more, or -1"
    ):
        ModelSummary(max_depth=-2)
