import functools
import os
from collections import Counter, defaultdict, namedtuple

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader

from core import (
    CheckpointCorruptedError,
    CheckpointError,
    CheckpointNotFoundError,
    ConfigurationError,
    Fabric,
)
from core.checkpoint import load_checkpoint

Pair = namedtuple("Pair", "first second")


class Run:
    """A small training run with everything that has a state."""

    def __init__(self, seed):
        torch.manual_seed(seed)
        self.fabric = Fabric(accelerator="cpu")
        net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)).double()
        self.model, self.optimizer = self.fabric.setup(
            net, torch.optim.Adam(net.parameters(), lr=0.1)
        )
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.loader = self.fabric.setup_dataloaders(
            DataLoader(torch.arange(24.0).double().view(12, 2), batch_size=2, shuffle=True)
        )

    def train(self, number):
        losses = []
        for batch in self.loader:
            self.optimizer.zero_grad()
            loss = self.model(batch).square().mean()
            self.fabric.backward(loss)
            self.optimizer.step()
            self.scheduler.step()
            losses.append(loss.item())
            if len(losses) == number:
                break
        return losses

    def state(self, **values):
        return {
            "model": self.model,
            "parts": {"optimizer": self.optimizer, "step": 0, **values},
            "others": [self.scheduler, self.loader],
        }


@pytest.fixture
def fabric():
    return Fabric(accelerator="cpu")


def test_a_run_goes_on_bit_for_bit(tmp_path):
    whole = Run(0).train(5)
    stopped = Run(0)
    first = stopped.train(2)
    stopped.fabric.save(
        tmp_path / "run.ckpt", {**stopped.state(step=2), "note": "hello", "best": 0.5}
    )
    resumed = Run(1)
    state = {**resumed.state(), "best": None}
    rest = resumed.fabric.load(tmp_path / "run.ckpt", state)
    assert rest == {"note": "hello"}
    assert state["best"] == 0.5
    assert state["parts"]["step"] == 2
    assert state["parts"]["optimizer"] is resumed.optimizer
    assert state["model"] is resumed.model
    assert first + resumed.train(3) == whole


@pytest.mark.parametrize("storage", ["torch", "distributed"])
def test_a_scheduler_of_another_class_is_refused_before_anything_is_restored(tmp_path, storage):
    """All classes: `plugins/training/tests/state/test_resume_schedulers.py`."""
    fabric = Fabric(accelerator="cpu", plugins=[storage])
    layer = nn.Linear(1, 1)
    model, optimizer = fabric.setup(layer, torch.optim.SGD(layer.parameters(), lr=0.1))
    fabric.save(
        tmp_path / "run.ckpt", {"model": model, "parts": [lr_scheduler.StepLR(optimizer, 1)]}
    )
    layer.weight.data.fill_(7)
    other, again = lr_scheduler.CosineAnnealingLR(optimizer, 10), lr_scheduler.StepLR(optimizer, 1)
    with pytest.raises(
        CheckpointError,
        match=r"scheduler state in the checkpoint is of torch\.optim\.lr_.* is to go",
    ):
        fabric.load(tmp_path / "run.ckpt", {"model": model, "parts": [other]})
    assert layer.weight == 7
    assert fabric.load(tmp_path / "run.ckpt", {"model": model, "parts": [again]}) == {}
    assert "made_by" not in vars(again)


def test_a_compiled_wrapper_is_saved_as_the_users_module(tmp_path):
    run = Run(0)
    run.fabric.save(tmp_path / "run.ckpt", {"model": torch.compile(run.model, backend="eager")})
    assert next(iter(run.fabric.load(tmp_path / "run.ckpt")["model"])) == "0.weight"


def test_plain_lists_are_replaced_and_lists_of_objects_are_not(tmp_path):
    run = Run(0)
    run.fabric.save(tmp_path / "run.ckpt", {"history": [1, 2], "mixed": [run.model, 3]})
    state = {"history": [], "mixed": [run.model, 4]}
    rest = run.fabric.load(tmp_path / "run.ckpt", state)
    assert state["history"] == [1, 2]
    assert state["mixed"] == [run.model, 4]
    assert rest["mixed"][1] == 3


@pytest.mark.parametrize(
    "value",
    [
        Pair(1, 2),
        Pair([1], {}),
        type("Own", (list,), {})([1]),
        type("Own", (dict,), {})(a=1),
        defaultdict(int, a=1),
    ],
)
def test_a_container_of_ones_own_class_is_refused_by_its_path(tmp_path, value):
    with pytest.raises(
        CheckpointError,
        match=r"^state\['mine'\]\['x'\] is a .*(Pair|Own|defaultdict), which a checkpoint",
    ):
        Fabric(accelerator="cpu").save(tmp_path / "x.ckpt", {"mine": {"x": value}})
    assert not (tmp_path / "x.ckpt").exists()


def test_a_container_of_objects_comes_back(fabric, tmp_path):
    """Those of Python's own: `tests/checkpoint/test_both_forms.py`."""
    module = fabric.setup(torch.nn.Linear(1, 1))
    fabric.save(tmp_path / "x.ckpt", {"counts": Counter("aab"), "pair": Pair(module, module)})
    assert repr(load_checkpoint(tmp_path / "x.ckpt")["counts"]) == repr(Counter("aab"))
    before = module.weight.detach().clone()
    torch.nn.init.zeros_(module.weight)
    fabric.load(tmp_path / "x.ckpt", {"pair": Pair(module, module)}, strict=False)
    assert torch.equal(module.weight, before)


def test_a_name_that_is_missing(tmp_path):
    run = Run(0)
    run.fabric.save(tmp_path / "run.ckpt", {"model": run.model})
    state = {"model": run.model, "epoch": 3}
    with pytest.raises(CheckpointError, match=r"The checkpoint has no 'epoch'; it has \['model'\]"):
        run.fabric.load(tmp_path / "run.ckpt", state)
    assert run.fabric.load(tmp_path / "run.ckpt", state, strict=False) == {}
    assert state["epoch"] == 3


@pytest.mark.parametrize("call", ["save", "load"])
def test_a_path_comes_first_and_then_a_dict(tmp_path, call):
    run = Run(0)
    with pytest.raises(ConfigurationError) as raised:
        getattr(run.fabric, call)({"model": run.model}, str(tmp_path / "run.ckpt"))
    assert str(raised.value) == (
        f"fabric.{call}(dict, str): expected a path first, and then a dict of what it holds, as in "
        f"fabric.{call}('last.ckpt', {{'model': model, 'optimizer': optimizer}})."
    )
    with pytest.raises(
        ConfigurationError, match=r"\(PosixPath, FabricModule\): expected a path first"
    ):
        getattr(run.fabric, call)(tmp_path / "run.ckpt", run.model)
    assert list(tmp_path.iterdir()) == []


# Files of torch.save ------------------------------------------------------------------------------


def test_raw_files_of_a_module_and_an_optimizer(tmp_path):
    source, target = Run(0), Run(1)
    source.train(2)
    for name in ("model", "optimizer"):
        torch.save(getattr(source, name).state_dict(), tmp_path / name)
        target.fabric.load_raw(tmp_path / name, getattr(target, name))
    assert all(map(torch.equal, source.model.parameters(), target.model.parameters()))
    moments = [
        [entry["exp_avg"] for entry in run.optimizer.state.values()] for run in (source, target)
    ]
    assert all(map(torch.equal, *moments))


def test_a_raw_file_of_weights_that_does_not_fit(tmp_path):
    run = Run(0)
    torch.save({"0.weight": torch.ones(3, 2)}, tmp_path / "part.pt")
    with pytest.raises(CheckpointError, match="does not fit Sequential"):
        run.fabric.load_raw(tmp_path / "part.pt", run.model)
    run.fabric.load_raw(tmp_path / "part.pt", run.model, strict=False)
    assert run.model.state_dict()["0.weight"].unique().tolist() == [1.0]
    with pytest.raises(
        CheckpointError, match=r"holds \['0.weight'\], which is not the state of an optimizer"
    ):
        run.fabric.load_raw(tmp_path / "part.pt", run.optimizer)


@pytest.mark.parametrize("number", [1, 5])
def test_a_raw_file_of_another_number_of_parameters(tmp_path, number):
    run, other = Run(0), torch.optim.SGD([nn.Parameter(torch.ones(1)) for _ in range(number)])
    torch.save(other.state_dict(), tmp_path / "other.pt")
    with pytest.raises(
        CheckpointError, match=f"of an optimizer of {number} parameters; this one has 4"
    ):
        run.fabric.load_raw(tmp_path / "other.pt", run.optimizer)


class Foreign:
    pass


@pytest.mark.parametrize("content", [Foreign(), torch.ones(2), b"no file of torch's"])
def test_a_raw_file_is_never_executed(tmp_path, content):
    path = tmp_path / "raw.pt"
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    run = Run(0)
    with pytest.raises(CheckpointCorruptedError, match=r"raw\.pt"):
        run.fabric.load_raw(path, run.model)


def test_what_is_no_raw_file_is_not_waited_for(tmp_path):
    run = Run(0)
    os.mkfifo(tmp_path / "raw.pt")
    with pytest.raises(
        CheckpointError, match=r"raw\.pt' is something else, where a file was expected"
    ):
        run.fabric.load_raw(tmp_path / "raw.pt", run.model)
    with pytest.raises(
        CheckpointError, match=r"is a folder, where a file .* load_raw reads .* fabric\.load\(path"
    ):
        run.fabric.load_raw(tmp_path, run.model)
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"raw\.pt can't be read: Not a directory"):
        run.fabric.load_raw(tmp_path / "file" / "raw.pt", run.model)


def test_no_raw_file(tmp_path):
    run = Run(0)
    with pytest.raises(CheckpointNotFoundError, match=r"There is no file at .*raw\.pt"):
        run.fabric.load_raw(tmp_path / "raw.pt", run.model)


# What does not fit --------------------------------------------------------------------------------


def saved_run(tmp_path):
    run = Run(0)
    run.train(1)
    run.fabric.save(tmp_path / "run.ckpt", {"model": run.model, "optimizer": run.optimizer})
    return tmp_path / "run.ckpt"


def test_all_differences_are_told_at_once(tmp_path):
    path = saved_run(tmp_path)
    fabric = Fabric(accelerator="cpu")
    other = nn.Sequential()
    other.add_module("0", nn.Linear(2, 3))
    other.add_module("last", nn.Linear(3, 2))
    other.add_module("1", nn.Linear(3, 2, bias=False))
    model = fabric.setup(other)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(CheckpointError) as caught:
        fabric.load(path, {"model": model})
    lines = str(caught.value).splitlines()
    assert lines == [
        "The checkpoint does not fit Sequential.",
        "The checkpoint lacks 'last.weight'; 'last.bias' (is it '1.bias'?).",
        "The module has no '1.bias' (is it 'last.bias'?).",
        "Of another shape are '1.weight', (1, 3) saved and (2, 3) here.",
    ]
    assert torch.equal(model.state_dict()["last.weight"], before["last.weight"])


class Count:
    def __init__(self):
        self.num = 1

    def state_dict(self):
        return {"num": self.num}

    def load_state_dict(self, state):
        self.num = state["num"]


@pytest.mark.parametrize("plugin", ["torch", "distributed"])
@pytest.mark.parametrize("wrong", [7, [1]], ids=str)
@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("optimizer", "a dict, the state of Adam,"),
        ("optimizer.param_groups", "a list of dicts with 'params'"),
        ("model", "a dict, the state of Linear,"),
        ("norm", "a dict, the state of BatchNorm1d,"),
        ("count", "a dict, the state of Count,"),
        ("averages", "a dict of tensors or states"),
        ("averages.ema", "a dict of tensors or states"),
        ("averages.ema.weight", "a tensor"),
    ],
)
def test_a_number_in_the_place_of_tensors_is_told_before_anything_is_loaded(
    tmp_path, plugin, wrong, place, expected
):
    fabric = Fabric(accelerator="cpu", plugins=plugin)

    def one_of_each_kind():
        """The optimizer with moments."""
        net = nn.Linear(2, 1)
        model, optimizer = fabric.setup(net, torch.optim.Adam(net.parameters()))
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        return {
            "model": model,
            "optimizer": optimizer,
            "norm": nn.BatchNorm1d(2),
            "averages": {"ema": {"weight": torch.ones(3)}, "decay": 0.9},
            "count": Count(),
        }

    fabric.save(tmp_path / "right.ckpt", one_of_each_kind())
    changed = fabric.load(tmp_path / "right.ckpt")
    *keys, last = place.split(".")
    functools.reduce(dict.__getitem__, keys, changed).update({last: wrong})
    fabric.save(tmp_path / "wrong.ckpt", changed)
    target = one_of_each_kind()
    before = target["model"].weight.clone().add_(1)
    target["model"].weight.data.copy_(before)
    with pytest.raises(CheckpointError) as caught:
        fabric.load(tmp_path / "wrong.ckpt", target)
    assert torch.equal(target["model"].weight, before)
    assert torch.equal(target["averages"]["ema"]["weight"], torch.ones(3))
    shown = "state" + "".join(f"[{key!r}]" for key in (*keys, last))
    told = str(caught.value)
    assert f"has {type(wrong).__name__} {wrong!r} at {shown}, where {expected} was expected" in told


@pytest.mark.parametrize("plugin", ["torch", "distributed"])
@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        (
            "count",
            {"n": 2},
            "state['count'], where a state of Count (its load_state_dict raised KeyError: 'num')",
        ),
        ("nested", [{"n": 2}], "has dict {'n': 2} at state['nested'][0], where a state of Count"),
        (
            "metric",
            {"total": torch.tensor([1, 2])},
            "Of another shape are 'total', (2,) saved and (3,) here.",
        ),
        ("metric", {}, "does not fit Metric.\nThe checkpoint lacks 'total'."),
        (
            "metric",
            {"total": torch.ones(3) / 2},
            "state['metric']['total'], where a tensor of torch.int64 was",
        ),
    ],
)
def test_what_an_object_of_ones_own_cannot_take_is_told(tmp_path, plugin, name, wrong, message):
    class Metric(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(3, dtype=torch.int64))

    fabric = Fabric(accelerator="cpu", plugins=plugin)
    fabric.save(tmp_path / "wrong.ckpt", {name: wrong})
    target = {"count": Count(), "nested": [Count()], "metric": Metric()}
    with pytest.raises(CheckpointError) as caught:
        fabric.load(tmp_path / "wrong.ckpt", {name: target[name]})
    assert message in str(caught.value)


def test_a_module_that_was_not_set_up_may_have_other_names(fabric, tmp_path):
    fabric.save(
        tmp_path / "run.ckpt", {"layer": {"weight": torch.tensor([[3.0]]), "scale": torch.ones(1)}}
    )
    layer = nn.Linear(1, 1)
    fabric.load(tmp_path / "run.ckpt", {"layer": layer}, strict=False)
    assert layer.weight == 3


def test_a_number_in_the_place_of_a_raw_weight_is_told(fabric, tmp_path):
    torch.save({"weight": 7, "bias": torch.zeros(1)}, tmp_path / "wrong.pt")
    with pytest.raises(CheckpointError, match=r"'weight', int saved and \(1, 2\) here"):
        fabric.load_raw(tmp_path / "wrong.pt", fabric.setup(nn.Linear(2, 1)))


@pytest.mark.parametrize(("layers", "number"), [([[1], [0]], 2), ([[0, 1]], 1)])
def test_no_parameter_gets_the_state_of_another_group(fabric, tmp_path, layers, number):

    def stepped(groups):
        net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
        groups = [{"params": [net[i].weight for i in group]} for group in groups]
        model, optimizer = fabric.setup(net, torch.optim.Adam(groups))
        fabric.backward(model(torch.rand(1, 2)).sum())
        optimizer.step()
        return {"model": model, "optimizer": optimizer}

    fabric.save(tmp_path / "run.ckpt", stepped([[0], [1]]))
    state = stepped(layers)
    moments = [entry["exp_avg"].clone() for entry in state["optimizer"].state.values()]
    with pytest.raises(CheckpointError) as caught:
        fabric.load(tmp_path / "run.ckpt", state)
    assert str(caught.value) == (
        f"The optimizer has {number} parameter group(s) and its saved state 2; '1.weight' is in "
        "group 0, and was in group 1. Build the optimizer with the same groups, in the same order, "
        "as when the checkpoint was written."
    )
    assert all(
        map(torch.equal, moments, [entry["exp_avg"] for entry in state["optimizer"].state.values()])
    )


def test_what_does_not_fit_may_be_left_out(tmp_path):
    path = saved_run(tmp_path)
    fabric = Fabric(accelerator="cpu")
    model = fabric.setup(nn.Sequential(nn.Linear(2, 3).double()))
    fabric.load(path, {"model": model}, strict=False)
    assert torch.equal(model.state_dict()["0.weight"], fabric.load(path)["model"]["0.weight"])


def test_a_module_that_renames_on_loading_has_its_say(tmp_path):
    class Renamed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(2, 3).double(), nn.Linear(3, 1).double()
            self.register_load_state_dict_pre_hook(self.rename)

        @staticmethod
        def rename(module, state, *_):
            for name in list(state):
                state[name.replace("0.", "first.").replace("1.", "second.")] = state.pop(name)

    path, fabric = saved_run(tmp_path), Fabric(accelerator="cpu")
    model = fabric.setup(Renamed())
    fabric.load(path, {"model": model})
    assert torch.equal(model.module.first.weight, fabric.load(path)["model"]["0.weight"])


def nested(depth):
    return {"deeper": nested(depth - 1)} if depth else 1


def test_a_state_without_an_end(tmp_path):
    with pytest.raises(
        CheckpointError,
        match=r"The state is nested too deeply to be saved.* Save plain, finite data",
    ):
        Fabric(accelerator="cpu").save(tmp_path / "endless.ckpt", {"state": nested(200)})
    assert not list(tmp_path.iterdir())
