"""The finder of a model's units: its repeated blocks."""

import pytest
import torch
from torch import nn

from core import ConfigurationError
from core.strategies import find_units


class Block(nn.Module):
    def __init__(self, width=4, num_experts=0):
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(width), nn.Linear(width, width)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(num_experts))

    def forward(self, x):
        return x + self.mlp(self.norm(x))


def of(**parts):
    model = nn.Module()
    for name, part in parts.items():
        setattr(model, name, part)
    return model


def blocks(number, width=4, kind=Block, **options):
    return nn.ModuleList(kind(width, **options) for _ in range(number))


def names(model, listed=None):
    return list(find_units(model, listed).named)


def test_the_children_of_the_largest_list():
    model = of(
        stem=nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)),
        h=blocks(12),
        head=nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
    )
    units = find_units(of(transformer=model))
    assert list(units.named) == [f"transformer.h.{index}" for index in range(12)]
    assert units.named["transformer.h.3"] is model.h[3]
    assert str(units) == "12 x Block (transformer.h.0 ... 11), from its largest ModuleList"


def test_a_model_that_is_a_list_itself():
    assert str(find_units(nn.Sequential(*(nn.Linear(2, 2) for _ in range(3))))) == (
        "3 x Linear (0 ... 2), from its largest Sequential"
    )


def test_a_list_within_the_blocks_is_a_part_of_them():
    assert names(of(h=blocks(2, num_experts=8))) == ["h.0", "h.1"]


def test_stages_of_one_class_count_however_small_they_are():
    stages = [nn.Sequential(Block(width), Block(width)) for width in (2, 64)]
    expected = ["body.0.0", "body.0.1", "body.1.0", "body.1.1"]
    assert names(of(body=nn.Sequential(*stages))) == expected  # of a list of lists, the inner ones


def test_a_decoder_of_another_class_counts_beside_its_encoder():
    class Cross(Block):
        pass

    model = of(
        encoder=blocks(8),
        decoder=blocks(2, kind=Cross),
        head=nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)),
    )
    assert str(find_units(model)) == (
        "8 x Block (encoder.0 ... 7), 2 x Cross (decoder.0 ... 1), from its largest ModuleList, "
        "and 1 more"
    )


@pytest.mark.parametrize(
    "model",
    [
        nn.Linear(2, 2),
        of(h=nn.Sequential(Block())),
        nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)),
        nn.Sequential(nn.ReLU(), nn.ReLU()),
        # can't be called
        of(h=nn.ModuleList(nn.ModuleList([Block(), nn.Linear(2, 2)]) for _ in range(2))),
    ],
)
def test_no_repeated_blocks(model):
    units = find_units(model)
    kind = type(model).__name__
    assert not units
    assert (
        str(units) == f"none: {kind} has no ModuleList or Sequential of several layers of one class"
    )


@pytest.mark.parametrize(
    "layers", [blocks(1), nn.ModuleList([Block()] * 3)], ids=["one layer", "used three times"]
)
def test_a_deep_model_that_has_one_layer_now(layers):
    assert str(find_units(of(h=layers))) == "1 x Block (h.0), from its largest ModuleList"
    assert names(of(h=layers, g=nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))) == ["g.0", "g.1"]


def test_an_option_that_asks_for_units():
    with pytest.raises(ConfigurationError) as refusal:
        find_units(nn.Linear(2, 2), asked_by="compile={'region': 'units'}")
    assert str(refusal.value) == (
        "compile={'region': 'units'} means the repeated blocks of the model, and Linear has no "
        "ModuleList or Sequential of several layers of one class. Give a list instead: layer "
        "classes, or names of classes or modules."
    )


# _no_split_modules --------------------------------------------------------------------------------


def pretrained(named, **parts):
    model = of(**parts)
    model.__class__ = type("Pretrained", (nn.Module,), {"_no_split_modules": named})
    return model


@pytest.mark.parametrize("named", [["Block", "LayerNorm"], {"Block"}, "Block"])
def test_modules_that_a_model_says_not_to_split(named):
    inner = pretrained(named, h=blocks(2), large=nn.ModuleList(nn.Linear(9, 9) for _ in range(9)))
    units = find_units(of(teacher=blocks(9), student=inner))
    # not the teacher's, nor what is within
    assert list(units.named) == ["student.h.0", "student.h.1"]
    assert str(units).endswith("named in _no_split_modules of Pretrained")


@pytest.mark.parametrize("named", [None, [], ["Gone"]])
def test_an_attribute_that_names_nothing(named):
    assert (
        str(find_units(pretrained(named, h=blocks(2))))
        == "2 x Block (h.0 ... 1), from its largest ModuleList"
    )


def test_a_class_that_was_made_of_the_named_one():
    wrapped, larger = type("ShardedBlock", (Block,), {}), blocks(9, kind=nn.Linear, out_features=99)
    assert names(pretrained(["Block"], g=larger, h=nn.ModuleList([wrapped(), wrapped()]))) == [
        "h.0",
        "h.1",
    ]


def test_what_is_around_and_what_is_within_both_name_classes():
    inner = pretrained(["LayerNorm"], h=blocks(2), norm=nn.LayerNorm(4))
    units = find_units(pretrained(["Block"], tower=inner, again=inner.h))
    assert list(units.named) == ["tower.h.0", "tower.h.1", "tower.norm"]


# what the user lists ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ({nn.LayerNorm}, ["h.0.norm", "h.1.norm"]),
        (["h.1", "Linear"], ["h.0.mlp", "h.1", "h.1.mlp"]),
        ("h.1", ["h.1"]),
        (Block, ["h.0", "h.1"]),
    ],
)
def test_classes_and_names(listed, expected):
    assert names(of(h=blocks(2)), listed) == expected


@pytest.mark.parametrize(
    ("item", "hint"), [("h.2.mpl", "h.2.mlp"), ("Blok", "Block"), (nn.Conv2d, None)]
)
def test_a_name_that_is_not_there(item, hint):
    with pytest.raises(ConfigurationError) as refusal:
        find_units(of(h=blocks(3)), [Block, item])
    text = str(refusal.value)
    assert text.startswith(
        f"{item if isinstance(item, str) else 'Conv2d'!r} is listed as a unit, and no part of "
        "Module"
    )
    assert hint is None or f"Did you mean {hint!r}?" in text
    assert text.endswith("It holds Block, LayerNorm, Linear, ModuleList.")


# parameters without values ------------------------------------------------------------------------


def test_sizes_on_meta_and_of_lazy_layers():
    with torch.device("meta"):
        model = of(
            small=nn.ModuleList(nn.Linear(1, 1) for _ in range(30)),
            h=blocks(2, 64),
            lazy=nn.LazyLinear(2),
        )
    assert names(model) == ["h.0", "h.1"]
    lazy = nn.ModuleList([nn.LazyLinear(2), nn.LazyLinear(2)])
    assert names(of(h=lazy, g=blocks(2))) == ["g.0", "g.1"]
    assert names(of(h=lazy)) == ["h.0", "h.1"]
    # as by an engine that keeps values elsewhere between two uses
    emptied = of(h=blocks(2), g=blocks(3))
    for parameter in emptied.parameters():
        parameter.data = torch.empty(0)
    assert names(emptied) == ["h.0", "h.1", "g.0", "g.1", "g.2"]


def test_a_long_list_is_told_shortly():
    model = of(
        **{f"stage{index}": nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for index in range(9)}
    )
    assert str(find_units(model)) == (
        "18 x Linear (stage0.0 ... 1, stage1.0 ... 1, stage2.0 ... 1, stage3.0 ... 1, stage4.0 ... "
        "1, stage5.0 ... 1, and 3 more), from its largest Sequential, and 8 more"
    )
