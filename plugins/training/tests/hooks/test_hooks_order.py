"""In which order a run calls the hooks of callbacks and module, and with what."""

import contextlib

import pytest
import torch
from torch.utils.data import DataLoader

from core import Callback, EventHooks, Module, ModuleError
from support.checkout import in_checkout
from support.small_nets import Net, batches, fit, quiet_trainer

HOOKS = [name for name in vars(EventHooks) if not name.startswith("_")]


def listening(base, events, owner, hooks=HOOKS):
    """A subclass of `base` that notes every hook."""

    def note(name):
        return lambda self, *args: events.append(f"{owner}.{name}")

    return type(f"Listening{base.__name__}", (base,), {name: note(name) for name in hooks})


def run(hooks=HOOKS, **options):
    events = []

    class Steps(Net):
        def training_step(self, batch, batch_idx):
            events.append("module.training_step")
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch, batch_idx):
            events.append("module.validation_step")

        def configure_model(self):
            events.append("module.configure_model")

        def configure_optimizers(self):
            events.append("module.configure_optimizers")
            return super().configure_optimizers()

    callback, module = (
        listening(Callback, events, "callback", hooks)(),
        listening(Steps, events, "module", hooks)(),
    )
    trainer = quiet_trainer(callbacks=callback, **options)
    return trainer, module, events


def both(*names):
    return [f"{owner}.{name}" for name in names for owner in ("callback", "module")]


def test_the_page_tells_the_same(tmp_path):
    page = in_checkout("docs/hooks.md").read_text(encoding="utf-8")
    # configure_callbacks isn't noted
    listed = page.partition("```text\n")[2].partition("```")[0].split("\n")[1:-1]
    told = [
        event
        for line in listed
        for event in ([f"module.{line.split()[0]}"] if line.endswith("*") else both(line.strip()))
    ]
    trainer, module, events = run(max_epochs=1, num_sanity_val_steps=1, accumulate_grad_batches=2)
    trainer.fit(module, batches(2), batches(1))
    assert events == told


def test_a_checkpoint_is_taken_apart_before_training_starts(tmp_path):
    trainer, module, events = run(max_epochs=1)
    trainer.fit(module, batches(1), batches(1))
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    assert events[-2:] == ["module.on_save_checkpoint", "callback.on_save_checkpoint"]

    trainer, module, events = run(max_epochs=2)
    trainer.fit(module, batches(1), batches(1), ckpt_path=tmp_path / "last.ckpt")

    start = events.index("module.on_fit_start")
    assert events[start + 1 : start + 4] == [
        "module.on_load_checkpoint",
        "callback.on_load_checkpoint",
        "callback.on_train_start",
    ]


def test_an_exception(tmp_path):
    trainer, module, events = run(max_epochs=1)
    error = RuntimeError("out of luck")

    def fail(*_):
        raise error

    module.on_train_batch_start = fail
    with pytest.raises(RuntimeError, match="out of luck") as raised:
        trainer.fit(module, batches(1), batches(1))

    assert raised.value is error
    assert events[-4:] == both("on_exception", "teardown")


@pytest.mark.parametrize(
    ("stage", "step"), [("validate", "validation"), ("test", "test"), ("predict", "predict")]
)
def test_evaluation(stage, step):
    trainer, module, events = run()
    module.test_step = module.predict_step = lambda batch: None
    getattr(trainer, stage)(module, batches(1))
    assert [event for event in events if not event.endswith("_step")] == [
        *both("setup"),
        "module.configure_model",
        *both(
            f"on_{step}_start",
            f"on_{step}_epoch_start",
            f"on_{step}_batch_start",
            f"on_{step}_batch_end",
        ),
        *both(f"on_{step}_epoch_end", f"on_{step}_end", "teardown"),
    ]


def test_hooks_get_what_they_are_promised():
    class Listener(Callback):
        def on_before_backward(self, trainer, module, loss):
            self.share = loss.item()

        def on_before_optimizer_step(self, trainer, module, optimizer):
            assert isinstance(optimizer, torch.optim.SGD)
            assert module.layer.weight.grad.abs().sum() > 0

        def on_before_zero_grad(self, trainer, module, optimizer):
            assert module.layer.weight.grad is not None

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            assert not outputs.requires_grad
            assert self.share == pytest.approx(outputs.item() / 2)
            self.end = (module.layer.weight.grad is None, batch.shape, batch_idx)

    listener = Listener()
    fit(Net(), batches(2), accumulate_grad_batches=2, callbacks=listener)
    assert listener.end == (True, (2, 4), 1)


def test_arguments_at_the_end_may_be_left_out():
    seen = []

    class Short(Net):
        def on_train_batch_start(self):
            seen.append("start")

        def on_train_batch_end(self, outputs):
            seen.append(type(outputs))

        def on_validation_batch_end(self, outputs, batch, batch_idx):
            seen.append(batch_idx)

        def validation_step(self, batch):
            seen.append("validation")

    class ShortCallback(Callback):
        def on_train_batch_end(self, trainer, module):
            seen.append("callback")

    fit(Short(), batches(1), batches(1), callbacks=ShortCallback())
    assert seen == ["start", "callback", torch.Tensor, "validation", 0]


@pytest.mark.parametrize(
    ("own", "of_one", "of_two"),
    [
        (lambda self, *args: seen.append(len(args)), 2, 3),
        (lambda self, batch, *args: seen.append(1 + len(args)), 2, 3),
        (lambda self, batch, batch_idx, *args: seen.append(2 + len(args)), 2, 3),
        (lambda self, batch, batch_idx, dataloader_idx, *args: seen.append(3 + len(args)), 3, 3),
    ],
)
@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_a_step_with_any_arguments_gets_the_loaders_number_if_there_are_several(
    stage, own, of_one, of_two
):
    name = {"validate": "validation_step"}.get(stage, f"{stage}_step")
    module = type("Open", (Net,), {name: own})()
    seen.clear()
    getattr(quiet_trainer(), stage)(module, DataLoader(torch.ones(1, 4)))
    getattr(quiet_trainer(), stage)(module, [DataLoader(torch.ones(1, 4))] * 2)
    assert seen == [of_one, of_two, of_two]


seen = []
INDEXED = [
    f"on_{stage}_batch_{edge}"
    for stage in ("validation", "test", "predict")
    for edge in ("start", "end")
]
TRANSFERS = ["on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"]


@pytest.mark.parametrize("name", INDEXED + TRANSFERS)
def test_the_number_of_the_loader_may_be_left_out_for_the_base_class(name):
    called = []

    def without_index(self, *arguments):
        called.append(getattr(super(type(self), self), name)(*arguments[:-1]))
        return called[-1]

    part = name.split("_")[1]
    stage = part if part in ("test", "predict") else "validate"
    steps = {f"{step}_step": lambda self, batch: None for step in ("validation", "test", "predict")}
    module = type("Deriving", (Net,), {name: without_index, **steps})()
    callback = type("Deriving", (Callback,), {name: without_index} if name in INDEXED else {})()
    getattr(quiet_trainer(callbacks=callback), stage)(module, batches(1))
    assert len(called) == (2 if name in INDEXED else 1)


@pytest.mark.parametrize(
    ("owner", "hook", "message"),
    [
        (
            Callback,
            {"on_train_epoch_end": lambda self: None},
            r"Broken.on_train_epoch_end\(\) can't be called; it gets \(trainer, module\)\.",
        ),
        (
            Callback,
            {"on_train_batch_start": lambda self, trainer, module, batch, batch_idx, more: None},
            r"can't be called; it gets \(trainer, module, batch, batch_idx\)",
        ),
        (
            Net,
            {"on_train_epoch_end": lambda self, outputs: None},
            r"Broken.on_train_epoch_end\(outputs\) can't be called; it gets \(\)\.",
        ),
        (
            Net,
            {"optimizer_step": lambda self, optimizer: None},
            r"it gets \(epoch, batch_idx, optimizer, optimizer_closure\)\.",
        ),
        (
            Net,
            {"training_step": lambda self: None},
            r"Broken.training_step\(\) can't be called; it gets \(batch, ",
        ),
        (
            Net,
            {"training_step": lambda self, a, b, c: None},
            "of which those at the end may be left out",
        ),
        (Net, {"on_fit_start": lambda self, *, why: None}, r"\(\*, why\) can't be called"),
    ],
)
def test_a_hook_that_cannot_be_called(owner, hook, message):
    with pytest.raises(ModuleError, match=message):
        fit_with(type("Broken", (owner,), hook)())


def fit_with(one):
    module = one if isinstance(one, Module) else Net()
    callbacks = one if isinstance(one, Callback) else None
    fit(module, callbacks=callbacks)


@pytest.mark.parametrize(
    ("owner", "name", "meant"),
    [
        (Net, "on_train_epoch_ends", "on_train_epoch_end"),
        (Net, "on_val_epoch_end", "on_validation_epoch_end"),
        (Net, "training_epoch_end", "on_train_epoch_end"),
        (Net, "validaton_step", "validation_step"),
        (Net, "on_validation_model_eval", "on_validation_start"),
        # the right one is there too, so this is a method of the user's own
        (Net, "configure_optimizer", None),
        (Net, "on_the_way", None),
        (Callback, "on_training_batch_end", "on_train_batch_end"),
        (Callback, "on_batch_end", "on_train_batch_end"),
    ],
)
def test_a_name_that_is_almost_a_hook(owner, name, meant):
    almost = type("Almost", (owner,), {name: lambda self, *args: None})()
    message = rf"Almost\.{name} is not a hook.* Did you mean '{meant}'\?"
    with contextlib.nullcontext() if meant is None else pytest.warns(UserWarning, match=message):
        fit_with(almost)


def test_a_module_that_inherits_from_torch_only():
    seen = []

    class Plain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch):
            return {"loss": self.layer(batch).sum(), "more": 1}

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def on_train_start(self):
            seen.append("start")

        def on_train_batch_end(self, outputs, batch, batch_idx):
            seen.append(outputs["more"])

        def train_dataloader(self):
            return batches(2)

        def configure_callbacks(self):
            return Noting()

    class Noting(Callback):
        def on_train_end(self, trainer, module):
            seen.append(type(module).__name__)

    quiet_trainer(max_epochs=1).fit(Plain())
    assert seen == ["start", 1, 1, "Plain"]


def test_the_callbacks_of_a_module_replace_those_of_their_type():
    class Counting(Callback):
        calls = 0

        def on_train_start(self, trainer, module):
            self.calls += 1

    class Other(Callback):
        pass

    own, replaced, kept = Counting(), Counting(), Other()
    trainer = quiet_trainer(max_epochs=1, callbacks=[replaced, kept])
    module = Net()
    module.configure_callbacks = lambda: [own]
    trainer.fit(module, batches())
    assert trainer.callbacks == [kept, own]
    assert (own.calls, replaced.calls) == (1, 0)

    with pytest.warns(UserWarning, match="fit trains nothing"):
        trainer.fit(Net(), batches())
    assert trainer.callbacks == [replaced, kept]
    module.configure_callbacks = lambda: ["checkpoint"]
    with pytest.raises(
        ModuleError,
        match=r"Net.configure_callbacks returned str 'checkpoint'; expected a core.Call",
    ):
        trainer.fit(module, batches())
