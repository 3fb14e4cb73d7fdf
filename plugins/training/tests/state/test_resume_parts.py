"""A fit goes on with parts of a checkpoint, and says which begin anew."""

import pytest
import torch
from torch import nn

from core import CheckpointError, ConfigurationError, Fabric, WorkerError
from core.callbacks import ModelCheckpoint
from core.checkpoint import DistributedCheckpointIO, load_checkpoint
from core_testing.ranks import Backend
from core_training import Resume
from support.tiny import Tiny, loader, make_trainer


class Net(Tiny):
    """Layers under names that a test chooses, momentum, a schedule."""

    def __init__(self, *names, lr=0.1, **options):
        super().__init__(lr=lr)
        del self.layer
        torch.manual_seed(5)
        self.names, self.options = names or ("first", "last"), options
        for name in self.names:
            self.add_module(name, nn.Linear(2, 1 if name == "last" else 2).double())

    def forward(self, x):
        x = x.double()
        for name in self.names:
            x = getattr(self, name)(x)
        return x

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9, **self.options)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]

    def moments(self):
        (optimizer,) = self.trainer.optimizers
        names = {id(parameter): name for name, parameter in self.named_parameters()}
        return {
            names[id(key)]: value["momentum_buffer"].clone()
            for key, value in optimizer.state.items()
            if value
        }

    def on_train_start(self):
        trainer = self.trainer
        self.started = {
            "weights": {name: value.clone() for name, value in self.state_dict().items()},
            "moments": self.moments(),
            "lr": trainer.optimizers[0].param_groups[0]["lr"],
            "place": (trainer.current_epoch, trainer.global_step),
        }

    def on_train_end(self):
        self.left = self.moments()


@pytest.fixture
def saved(tmp_path):
    """A checkpoint after five steps, in the second epoch of four; and the module that it is of."""
    module = Net()
    trainer = make_trainer(tmp_path, max_steps=5, limit_val_batches=0)
    trainer.fit(module, loader())
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    return tmp_path / "a.ckpt", module


def go_on(path, module, resume, max_steps=7):
    trainer = make_trainer(path.parent, max_steps=max_steps, limit_val_batches=0)
    trainer.fit(module, loader(), ckpt_path=path, resume=resume)
    return module.started


def is_alike(found, expected):
    return found.keys() == expected.keys() and all(
        torch.equal(found[name], expected[name]) for name in expected
    )


@pytest.mark.parametrize(
    ("resume", "has_moments", "lr", "place", "anew"),
    [
        ("all", True, 0.05, (1, 5), None),
        ("weights", False, 0.1, (0, 0), "optimizers, schedulers, data, step, callbacks"),
        ({"weights", "optimizers"}, True, 0.05, (0, 0), "schedulers, data, step, callbacks"),
        (["weights", "step"], False, 0.1, (1, 5), "optimizers, schedulers, data, callbacks"),
        ({"weights", "optimizers", "schedulers", "data", "step"}, True, 0.05, (1, 5), "callbacks"),
    ],
    ids=["all", "weights", "optimizers", "step", "data"],
)
def test_takes_the_parts_that_are_asked_for(saved, capsys, resume, has_moments, lr, place, anew):
    path, module = saved
    started = go_on(path, Net(), resume)
    assert is_alike(started["weights"], module.state_dict())
    assert is_alike(started["moments"], module.left if has_moments else {})
    assert started["lr"] == pytest.approx(lr)
    assert started["place"] == place
    out = capsys.readouterr().out
    if anew is None:
        assert "anew:" not in out
    else:
        assert f"Resumed from {path}: epoch {place[0]}" in out
        assert f"step {place[1]}; anew: {anew}\n" in out


def test_a_step_without_data_begins_its_epoch_anew(saved):
    path, _ = saved
    module = Net()
    batches = []
    module.on_train_batch_start = lambda batch, batch_idx: batches.append(batch_idx)
    go_on(path, module, {"weights", "step"})
    assert batches == [0, 1]


def test_the_newest_is_kept_also_where_steps_begin_anew(tmp_path):
    for epochs, ckpt_path, resume in (
        (3, None, "all"),
        (2, tmp_path / "c/epoch=2.ckpt", {"weights", "callbacks"}),
    ):
        checkpoint = ModelCheckpoint(tmp_path / "c", "{epoch}")
        trainer = make_trainer(tmp_path, checkpoint, max_epochs=epochs, limit_val_batches=0)
        trainer.fit(Net(), loader(), ckpt_path=ckpt_path, resume=resume)
    assert checkpoint.best_model_path == str(tmp_path / "c/epoch=1.ckpt")
    assert (tmp_path / "c/epoch=1.ckpt").exists()


def test_weights_alone_are_enough_for_weights(saved):
    path, module = saved
    weights = path.with_name("weights.ckpt")
    trainer = make_trainer(path.parent, max_steps=1, limit_val_batches=0)
    trainer.fit(module, loader())
    trainer.save_checkpoint(weights, weights_only=True)
    assert is_alike(go_on(weights, Net(), "weights")["weights"], module.state_dict())
    with pytest.raises(CheckpointError, match="holds the state of 0 optimizers"):
        go_on(weights, Net(), {"weights", "optimizers"})


def test_renamed_parameters_keep_their_weights_and_moments(saved):
    path, module = saved
    renamed = {"first": "stem", "last.bias": "last.bias"}
    started = go_on(path, Net("stem", "last"), Resume(renamed=renamed))
    own = {name.replace("first", "stem"): value for name, value in module.state_dict().items()}
    assert is_alike(started["weights"], own)
    assert is_alike(
        started["moments"],
        {name.replace("first", "stem"): value for name, value in module.left.items()},
    )
    assert started["place"] == (1, 5)
    with pytest.raises(CheckpointError, match=r"lacks 'stem\.weight'"):
        go_on(path, Net("stem", "last"), "all")
    with pytest.raises(
        CheckpointError, match=r"gives 'first\.weight' .* name of another .*'last\.weight'"
    ):
        go_on(path, Net(), Resume("weights", renamed={"first": "last"}, strict=False))


@pytest.mark.filterwarnings("default:SGD begins anew")
def test_added_and_removed_parameters_begin_anew_unless_strict(saved, capsys):
    path, module = saved
    new = Net("stem", "extra", "last")
    with pytest.warns(
        UserWarning, match=r"SGD begins anew for 'stem\.weight', .*leaves out 'first\.weight', "
    ):
        started = go_on(path, new, Resume(strict=False))
    first = Net("stem", "extra", "last").state_dict()
    expected = {name: module.state_dict().get(name, first[name]) for name in first}
    assert is_alike(started["weights"], expected)
    assert is_alike(
        started["moments"], {name: module.left[name] for name in ("last.weight", "last.bias")}
    )
    out = capsys.readouterr().out
    assert "The checkpoint lacks 'stem.weight'" in out
    assert "The module has no 'first.weight'" in out


def test_evaluation_takes_the_weights_whatever_a_fit_before_took(saved):
    path, module = saved
    trainer = make_trainer(path.parent, max_steps=1, limit_val_batches=0)
    other = Net()
    trainer.fit(other, loader(), ckpt_path=path, resume="weights")
    trainer.test(other, loader(), ckpt_path=path, verbose=False)
    assert is_alike(other.state_dict(), module.state_dict())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"resume": "weight"},
            r"resume='weight': expected 'all', or some of 'weights', .*not 'weight'",
        ),
        ({"resume": {"data", "weights"}}, "belongs to the epoch that 'step' counts. Add 'step'"),
        ({"resume": []}, r"resume=\[\]: expected 'all'"),
        ({"resume": "weights", "ckpt_path": None}, "Pass its ckpt_path"),
        ({"resume": "weights", "ckpt_path": "last"}, "would begin at that part each time"),
    ],
)
def test_impossible_parts_are_refused_before_work(tmp_path, options, message):
    trainer = make_trainer(tmp_path, max_steps=1)
    with pytest.raises(ConfigurationError, match=message):
        trainer.fit(Net(), loader(), **{"ckpt_path": tmp_path / "nothing.ckpt", **options})


def test_fabric_loads_renamed_and_changed_parameters(tmp_path):
    def setup(*names):
        net = nn.ModuleDict({name: nn.Linear(2, 2) for name in names})
        fabric = Fabric(accelerator="cpu")
        model, optimizer = fabric.setup(
            net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        )
        return fabric, net, optimizer, {"model": model, "optimizer": optimizer}

    def moments(optimizer, layer):
        return [optimizer.state[value]["momentum_buffer"].tolist() for value in layer.parameters()]

    fabric, net, first, state = setup("a", "b")
    fabric.backward(sum(layer(torch.ones(1, 2)).square().sum() for layer in net.values()))
    first.step()
    fabric.save(tmp_path / "a.ckpt", state)

    fabric, other, second, state = setup("c", "d")
    with pytest.warns(
        UserWarning, match=r"begins anew for 'd\.weight', 'd\.bias'; it leaves out 'b\.weight'"
    ):
        fabric.load(tmp_path / "a.ckpt", state, renamed={"a": "c"}, strict=False)
    assert torch.equal(other["c"].weight, net["a"].weight)
    assert moments(second, other["c"]) == moments(first, net["a"])
    assert set(second.state) == set(other["c"].parameters())


class Adapted(Net):
    """The first layer is frozen, with values that the program brings."""

    def __init__(self, value=1.0):
        super().__init__()
        self.first.requires_grad_(False)
        torch.nn.init.constant_(self.first.weight, value)


def test_frozen_parameters_may_stay_out_of_checkpoints(saved, tmp_path):
    path = tmp_path / "trained.ckpt"
    whole, module, rest = Adapted(), Adapted(), Adapted()
    make_trainer(tmp_path, max_steps=9, limit_val_batches=0).fit(whole, loader())
    trainer = make_trainer(tmp_path, max_steps=5, limit_val_batches=0, save_only="trainable")
    trainer.fit(module, loader())
    trainer.save_checkpoint(path)
    assert load_checkpoint(path)["model"].keys() == {"last.weight", "last.bias"}
    go_on(path, rest, "all", max_steps=9)
    assert is_alike(rest.state_dict(), whole.state_dict())
    trainer.test(Adapted(), loader(), ckpt_path=path, verbose=False)
    with pytest.raises(CheckpointError, match=r"lacks 'first\.weight', which isn't frozen here"):
        go_on(path, Net(), "all")
    with pytest.raises(ConfigurationError, match="expected 'all' or 'trainable'"):
        make_trainer(tmp_path, save_only="trained")


def test_frozen_values_are_compared_with_those_that_the_program_brings(tmp_path):
    path = tmp_path / "trained.ckpt"
    trainer = make_trainer(tmp_path, max_steps=5, limit_val_batches=0, save_only="trainable")
    trainer.fit(Adapted(), loader())
    trainer.save_checkpoint(path)
    other = (
        r"beside another 'first\.weight'.* \(\(2, 2\), .*, 4\.0, 4\.0\), and are \(\(2, 2\), "
        r".*, 8\.0, 8\.0\)"
    )
    with pytest.raises(CheckpointError, match=other):
        go_on(path, Adapted(2.0), "all", max_steps=9)
    with pytest.raises(CheckpointError, match=other):
        trainer.test(Adapted(2.0), loader(), ckpt_path=path, verbose=False)
    go_on(path, Adapted(2.0), Resume(strict=False), max_steps=9)


@pytest.mark.slow
def test_frozen_shards_are_compared_on_another_number_of_ranks(tmp_path):
    def fit_on_ranks(rank, path, value, ckpt_path=None):
        options = {"plugins": [rank.environment, DistributedCheckpointIO()], "limit_val_batches": 0}
        trainer = rank.trainer(
            max_steps=5 if ckpt_path is None else 9, save_only="trainable", **options
        )
        trainer.fit(Adapted(value), loader(), ckpt_path=ckpt_path)
        trainer.save_checkpoint(path)

    two, three = (Backend(lambda: "fsdp", num_processes=number) for number in (2, 3))
    two.run(fit_on_ranks, tmp_path / "two.ckpt", 1.0)
    three.run(fit_on_ranks, tmp_path / "three.ckpt", 1.0, tmp_path / "two.ckpt")
    with pytest.raises(WorkerError, match=r"beside another 'first\.weight'"):
        two.run(fit_on_ranks, tmp_path / "other.ckpt", 2.0, tmp_path / "three.ckpt")


# what the program says otherwise ------------------------------------------------------------------


def table_of(text):
    lines = [line.split() for line in text.splitlines() if line.startswith("  ")]
    return {name: values for name, *values in lines[1:]}


LR, DECAY = (f"optimizers.0.param_groups.0.{name}" for name in ("lr", "weight_decay"))
OTHER = {"lr": 0.2, "weight_decay": 0.5}


@pytest.mark.parametrize(
    ("resume", "used", "rate"),
    [("all", "checkpoint", 0.05), (Resume(settings="program"), "program", 0.1)],
)
def test_a_program_that_says_otherwise_is_told_what_is_used(saved, capsys, resume, used, rate):
    path, _ = saved
    capsys.readouterr()
    module = Net(**OTHER)
    started = go_on(path, module, resume)
    table = table_of(capsys.readouterr().out)
    assert table == {LR: ["0.1", "0.2", used], DECAY: ["0", "0.5", used]}
    # Halved once, as the schedule was when it was saved.
    assert started["lr"] == pytest.approx(rate)
    module.trainer.save_checkpoint(path)
    go_on(path, Net(**OTHER), "all", max_steps=8)
    assert (LR in table_of(capsys.readouterr().out)) is (used == "checkpoint")


def test_batches_formats_and_seeds_are_compared(saved, capsys):
    path, _ = saved
    capsys.readouterr()
    trainer = make_trainer(path.parent, max_steps=7, limit_val_batches=0, precision="64-true")
    module = Net()
    torch.manual_seed(8)
    trainer.fit(module, torch.utils.data.DataLoader(loader().dataset, batch_size=1), ckpt_path=path)
    table = table_of(capsys.readouterr().out)
    assert table.keys() == {"batch_size", "precision", "seed"}
    assert (table["precision"], table["seed"]) == (
        ["32-true", "64-true", "program"],
        ["5", "8", "checkpoint"],
    )


@pytest.mark.parametrize(
    ("options", "resume", "seed"), [({}, "all", 5), ({}, "all", 2**60), (OTHER, "weights", 6)]
)
def test_a_program_that_says_the_same_or_begins_anew_gets_no_table(
    saved, capsys, options, resume, seed
):
    path, _ = saved
    capsys.readouterr()
    module = Net(**options)
    torch.manual_seed(seed)  # one of 60 bits is drawn, as for ranks that nobody has seeded
    go_on(path, module, resume)
    assert "The program says otherwise" not in capsys.readouterr().out
