"""The parts of a model are found, by whoever says them, and make stages."""

import pytest
import replays
import torch
from language import ALONE, on
from torch import nn
from torch.utils.data import DataLoader

from core import ConfigurationError, CoreError, Module
from core_parallel import MeshParallelStrategy
from core_parallel.modules import own_state
from core_parallel.stages import found_blocks, part_times, parts
from core_parallel.stages.layout import Layout


class Fixed(nn.Module):
    """A model that can't be changed: it has no method `pipeline`, and lists of modules."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(11))
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        x = self.embed(x).relu()
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Wrapped(nn.Module):
    """A step around it."""

    def __init__(self):
        super().__init__()
        self.net = Fixed()

    def forward(self, x):
        return self.net(x).sum()


@pytest.mark.parametrize(("make", "prefix"), [(Fixed, ""), (Wrapped, "net.")])
def test_parts_have_names_in_the_users_module(make, prefix):
    def names_of(user, cut):
        names = {id(module): name for name, module in user.named_modules()}
        return [names[id(part)] for stage in cut.stages for part in stage]

    user = make()
    cut = parts.cut(user, 3, [f"{prefix}embed", torch.relu, f"{prefix}blocks.*", f"{prefix}head"])
    assert cut.called == (user.get_submodule(prefix[:-1]),)
    blocks = [f"{prefix}blocks.{index}" for index in range(11)]  # 10 follows 9, and not 1
    assert names_of(user, cut) == [f"{prefix}embed", *blocks, f"{prefix}head"]
    x = torch.randn(3, 4)
    layout = Layout(user, cut, 3, 0)
    assert torch.equal(replays.call(layout, x), cut.called[0](x))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            [
                "embed",
                torch.relu,
                "blocks.1",
                "blocks.0",
                *(f"blocks.{index}" for index in range(2, 11)),
                "head",
            ],
            r"Fixed called its part 'blocks\.0' where 'blocks\.1' comes next by .* or parts=",
        ),
        (
            ["embed", torch.relu, "blocks", "head"],
            r"Fixed called its part 'head' where 'blocks' comes next",
        ),
        (
            ["embd", "head"],
            "parts names 'embd', and Fixed has no such module. Did you mean 'embed'",
        ),
        (["embed", "block.*", "head"], r"Did you mean 'blocks\.\*'"),
        (["zzz", "head"], "It has 'embed', 'blocks', 'blocks.0'"),
    ],
)
def test_names_that_are_not_the_model_are_refused(given, expected):
    user = Fixed()
    with pytest.raises(CoreError, match=expected):
        replays.call(Layout(user, parts.cut(user, 2, given), 2, 0), torch.randn(3, 4))


def test_names_are_of_one_module_that_is_called():
    user = Wrapped()
    assert parts.cut(user, 2, ["net.blocks.*"]).called == (user.net,)


@pytest.mark.parametrize(
    "given", ["embed", [], [torch.relu], ["embed", 3], [nn.Linear(2, 2), "embed"]]
)
def test_parts_are_a_list_of_names(given):
    with pytest.raises(ConfigurationError, match="expected a list of module names in the order"):
        MeshParallelStrategy(pipeline=2, parts=given)


def test_a_sequence_applies_a_module_twice():
    act = nn.Tanh()
    user = nn.Sequential(nn.Linear(4, 4), act, nn.Linear(4, 4), act)
    x = torch.randn(3, 4)
    for given in (None, ["*"]):
        layout = Layout(user, parts.cut(user, 2, given), 2, 0)
        assert torch.equal(replays.call(layout, x), user(x))


@pytest.mark.parametrize(
    "given",
    [
        ["embed", "blocks.*", "head"],
        ["embed", "blocks.*"],
        ["blocks.1", "blocks.3", "head"],
        [torch.neg, "embed", "blocks.*", "head"],
    ],
)
def test_what_no_part_does_is_computed_by_forward(given):
    user, x = Fixed(), torch.randn(3, 4)
    layout = Layout(user, parts.cut(user, 2, given), 2, 0)
    assert torch.equal(replays.call(layout, x), user(x))


def test_forward_may_have_its_parts_from_anywhere():
    class _Listed(Fixed):
        """Calls a part twice, and has others in a list and a function."""

        def __init__(self):
            super().__init__()
            self.act = nn.Tanh()
            self.ends = [self.act, self.head, lambda x: self.act(x)]

        def pipeline(self):
            return [self.embed, self.act, *self.blocks, self.act, self.head, self.act]

        def forward(self, x):
            x = self.act(self.embed(x))
            for block in self.blocks:
                assert isinstance(block, nn.Sequential)
                x = block(x) if len(block) == 2 else x
            for end in self.ends:
                x = end(x)
            return x

    user, x = _Listed(), torch.randn(3, 4)
    layout = Layout(user, parts.cut(user, 2), 2, 0)
    assert torch.equal(replays.call(layout, x), user(x))
    assert type(user.act) is nn.Tanh, "it has its own class again"


def _row():
    """Five parts of 1, 20, 1, 1 and 1 parameters."""
    return nn.Sequential(*(nn.Linear(size, 1, bias=False) for size in (1, 20, 1, 1, 1)))


@pytest.mark.parametrize(
    ("balanced", "expected"),
    [("parameters", [1, 1, 3]), ([2, 1, 2], [2, 1, 2]), ((3, 1, 1), [3, 1, 1])],
)
def test_stages_get_parts_by_parameters_or_by_count(balanced, expected):
    user = _row()
    stages = parts.cut(user, 3, None, balanced).stages
    assert [len(stage) for stage in stages] == expected
    assert [one for stage in stages for one in stage] == list(user)


@pytest.mark.parametrize("schedule", [None, "1F1B"])
def test_a_weight_that_stages_share_has_one_gradient(schedule):
    def learn(rank):
        """The weights after two steps."""
        torch.manual_seed(0)
        fabric, x = rank.fabric(), torch.linspace(-1, 1, 32, dtype=torch.float64).reshape(8, 4)
        module = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4))).double()
        module[3].weight = module[0].weight
        model = fabric.setup(module)
        optimizer = fabric.setup_optimizers(torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(2):
            fabric.step(model, x, lambda model, batch: model(batch).square().mean())
            optimizer.step()
            optimizer.zero_grad()
        own = {name: one for name, one in module.named_parameters() if not one.is_meta}
        fabric.teardown()
        return own

    (expected,) = ALONE.run(learn)
    runs = on(in_process=True, pipeline=2, schedule=schedule).run(learn)
    assert all("0.weight" in own for own in runs)
    for own in runs:
        for name, one in own.items():
            torch.testing.assert_close(one, expected[name], rtol=0, atol=1e-12)


def test_a_stage_has_at_least_a_part():
    with pytest.raises(CoreError, match=r"has 5 part\(s\), and 6 stages were asked for"):
        parts.cut(_row(), 6)


def test_a_function_is_no_part():
    given = [torch.neg, "embed", torch.relu, "blocks.*", "head"]
    assert [len(stage) for stage in parts.cut(Fixed(), 3, given, [1, 11, 1]).stages] == [1, 11, 1]


@pytest.mark.parametrize(
    ("balanced", "expected"),
    [
        (
            [3, 2],
            r"balance=\[3, 2\] is for 2 stages and 5 parts, and there are 3 stages \(pipeline times",
        ),
        (
            [3, 2, 1],
            r"balance=\[3, 2, 1\] is for 3 stages and 6 parts, .* and 5 parts of Sequential",
        ),
    ],
)
def test_counts_that_do_not_fit_are_refused(balanced, expected):
    with pytest.raises(ConfigurationError, match=expected):
        parts.cut(_row(), 3, None, balanced)


def test_stages_take_about_as_long(monkeypatch):
    class _Slow(nn.Module):
        """A part that takes its seconds of a clock of the test's own, and counts its calls."""

        def __init__(self, seconds, clock):
            super().__init__()
            self.seconds, self.clock = seconds, clock
            self.calls = nn.Buffer(torch.zeros(()))

        def forward(self, x):
            self.clock[0] += self.seconds
            self.calls += 1
            return x + torch.rand(())

    clock = [0.0]
    monkeypatch.setattr(part_times, "perf_counter", lambda: clock[0])
    user = nn.Sequential(*(_Slow(seconds, clock) for seconds in (1, 1, 1, 5, 1)))
    with pytest.raises(
        ConfigurationError,
        match=r"Sequential on an example, and it has none\. Set its example_input_",
    ):
        parts.cut(user, 3, None, "time")
    user.example_input_array = torch.zeros(2)
    before = torch.get_rng_state()
    assert [len(stage) for stage in parts.cut(user, 3, None, "time").stages] == [3, 1, 1]
    assert torch.equal(torch.get_rng_state(), before)
    assert all(not part.calls and not part._forward_pre_hooks for part in user)
    assert [len(stage) for stage in parts.cut(user, 3).stages] == [1, 2, 2]


def test_what_cannot_be_measured_is_refused():
    user = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    user.example_input_array = {"input": torch.zeros(1, 2)}
    assert [len(stage) for stage in parts.cut(user, 2, None, "time").stages] == [1, 1]
    user.forward = user[0].forward
    with pytest.raises(CoreError, match="its forward called 0 parts, where 2 were expected"):
        parts.cut(user, 2, None, "time")


@pytest.mark.parametrize("given", ["times", [], [1, 0], [True, 1], 3, [1.0, 2]])
def test_a_balance_is_a_rule_or_counts(given):
    with pytest.raises(
        ConfigurationError,
        match=r"expected 'parameters', 'time', or a list with the number of parts",
    ):
        MeshParallelStrategy(pipeline=2, balance=given)


def test_a_parameter_that_was_put_into_a_part_stays_there():
    user = Fixed()
    user.scale = nn.Parameter(torch.ones(()))
    layout = Layout(user, parts.cut(user, 2, ["embed", "blocks.*", "head"]), 2, 0)
    assert layout.outside() == [user.scale]
    user.head.weight = nn.Parameter(torch.zeros(2, 8))  # as pruning does
    user.shift = nn.Parameter(torch.ones(()))
    assert [id(one) for one in layout.outside()] == [id(user.scale), id(user.shift)]


def test_what_goes_beside_is_computed_by_forward():
    class _Beside(nn.Module):
        """A model whose layers are given something beside the result of the layer before."""

        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(4, 4)
            self.layers = nn.ModuleList([nn.Bilinear(4, 4, 4), nn.Bilinear(4, 4, 4)])

        def forward(self, x):
            x, beside = self.embed(x), x.cos()
            for layer in self.layers:
                x = layer(x, beside)
            return x

    user, x = _Beside(), torch.randn(3, 4)
    layout = Layout(user, parts.cut(user, 2, ["embed", "layers.*"]), 2, 0)
    assert torch.equal(replays.call(layout, x), user(x))


@pytest.mark.parametrize("balanced", [[3, 10], "time"])
def test_named_parts_equal_one_device(balanced):
    def learn(rank):
        """The model's result after a step, and the parameters that this rank has."""
        torch.manual_seed(0)
        fabric, x = rank.fabric(), torch.linspace(-1, 1, 32, dtype=torch.float64).reshape(8, 4)
        module = Wrapped().double()
        module.example_input_array = x
        model = fabric.setup(module)
        optimizer = fabric.setup_optimizers(torch.optim.SGD(model.parameters(), lr=0.1))
        fabric.backward(model(x))
        optimizer.step()
        result = model(x).detach()
        own = [name for name, one in model.named_parameters() if not one.is_meta]
        fabric.teardown()
        return result, own

    names = ["net.embed", torch.relu, "net.blocks.*", "net.head"]
    runs = on(in_process=True, pipeline=2, parts=names, balance=balanced).run(learn)
    expected = ALONE.run(learn)[0]
    for result, _ in runs:
        torch.testing.assert_close(result, expected[0], rtol=0, atol=1e-12)
    assert runs[0][1] + runs[1][1] == expected[1]
    if balanced != "time":
        assert runs[0][1][-1] == "net.blocks.1.0.bias"


class _Around(Module):
    """A module that says the parts of a model in it, which its training step calls directly."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = Fixed()
        self.double()

    def pipeline(self):
        return [self.net.embed, torch.relu, *self.net.blocks, self.net.head]

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        return self.net(batch).square().mean()

    def validation_step(self, batch, batch_idx):
        self.log("both", (self(batch) + self.net(batch)).sum())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def around(rank, schedules):
    """What the validation after a fit logs, by each schedule."""
    batches = DataLoader(
        torch.linspace(-1, 1, 64, dtype=torch.float64).reshape(16, 4), batch_size=8
    )
    logged = []
    for schedule in schedules:
        given = None if schedule is None else MeshParallelStrategy(pipeline=2, schedule=schedule)
        trainer, module = rank.trainer(given, max_epochs=1, precision="64-true"), _Around()
        trainer.fit(module, batches, batches)
        trainer.validate(module, batches)  # which converts a module that has been cut
        logged.append(float(trainer.callback_metrics["both"]))
    return logged


@pytest.mark.slow
def test_a_step_calls_the_module_in_the_one_that_says_its_parts():
    runs = on(pipeline=2).run(around, [None, "1F1B"])
    expected = ALONE.run(around, [None])[0]
    for run in runs:
        assert run == pytest.approx(expected * 2, abs=1e-12)


def test_the_forward_of_the_module_that_is_called_counts():
    class Scaled(_Around):
        def pipeline(self):
            return [*super().pipeline(), torch.neg]

        def forward(self, x):
            return -super().forward(x)

    user, x = Scaled(), torch.randn(3, 4, dtype=torch.float64)
    layout = Layout(user, parts.cut(user, 2), 2, 0)
    assert layout.cut.called == (user, user.net)
    assert torch.equal(replays.call(layout, x), user(x))
    layout.cut.replay.owner = user.net
    assert torch.equal(replays.call(layout, x), user.net(x))


def test_a_unit_whose_weight_is_used_outside_of_units_is_no_part():
    class Tied(Fixed):
        """Its first unit is an embedding whose weight the head has too, as BERT's."""

        _no_split_modules = ["Sequential", "Embedding"]

        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(4, 8)
            self.head = nn.Linear(8, 4)
            self.head.weight = self.embed.weight

    model = Tied()
    ((_, _, blocks),) = found_blocks.find(model)
    assert blocks == [*model.blocks]


def test_a_list_that_held_tensors_is_no_change_of_numbers():
    class Clears(nn.Module):
        def __init__(self):
            super().__init__()
            self.terms, self.counts = [torch.ones(1)], {"calls": 0}

    module = Clears()
    before = own_state.state_of(module.named_modules())
    module.terms.clear()
    module.counts["calls"] += 1
    changed = own_state.changed(before, own_state.state_of(module.named_modules()))
    assert own_state.names_of(changed) == ["counts"]
