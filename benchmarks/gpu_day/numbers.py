"""The numbers that are computed: in each precision, after an overflow, and compiled."""

from functools import partial
from itertools import pairwise

import torch

from gpu_day.setting import SMALL, Net, expect, loader, make_trainer, seconds


def precisions():
    """Losses of each precision beside those of float32, and what a real overflow does."""
    figures, first = {}, None
    for precision in ("32-true", "bf16-mixed", "16-mixed", "16-true"):
        module = Net()
        module.layers[2].p = 0.0
        try:
            # float16 begins with a scale that is too large, and skips its first steps: of 64 that
            # makes no difference.
            make_trainer(precision=precision, max_epochs=4).fit(module, loader())
        except Exception as error:
            if SMALL:  # a CPU doesn't have all of them
                figures[precision] = f"not here: {type(error).__name__}"
                continue
            raise
        losses = torch.stack(module.losses).float()
        last = losses[-4:].mean().item()
        first = first if first is not None else last
        figures[f"{precision}, last loss"] = round(last, 4)
        expect(last < losses[0].item(), f"{precision}: the loss doesn't fall, {losses.tolist()}")
        expect(
            abs(last - first) < 0.2 * first + 0.1, f"{precision}: {last} beside {first} in float32"
        )
    if "16-mixed" not in figures:
        figures |= overflow()
    return figures


class Overflowing(Net):
    """Its third batch has gradients that are infinite in float16."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def training_step(self, batch, batch_idx):
        self.seen.append(self.layers[0].weight.detach().clone())
        return super().training_step(batch, batch_idx) * (1e30 if batch_idx == 2 else 1.0)


def overflow():
    """A step whose gradients overflow float16 changes no weight, and a later one does."""
    module = Overflowing()
    make_trainer(precision="16-mixed").fit(module, loader())
    expect(
        torch.equal(module.seen[2], module.seen[3]),
        "a step whose gradients are infinite has changed weights",
    )
    changed = [not torch.equal(before, after) for before, after in pairwise(module.seen[3:])]
    expect(any(changed), "nothing is learned after an overflow")
    expect(
        all(weight.isfinite().all() for weight in module.parameters()),
        "weights aren't finite after an overflow",
    )
    return {"16-mixed, steps until it learns again": changed.index(True) + 1}


def compiled():
    """A compiled run beside an eager one."""
    losses, figures = {}, {}
    # What inductor generates for a CPU takes a compiler and a minute.
    for name, options in {
        "eager": False,
        "compiled": {"backend": "aot_eager"} if SMALL else True,
    }.items():
        module = Net()
        module.layers[2].p = 0.0
        figures[f"{name}, s"] = round(
            seconds(partial(make_trainer(compile=options).fit, module, loader())), 2
        )
        losses[name] = torch.stack(module.losses).float().cpu()
    torch.testing.assert_close(losses["eager"], losses["compiled"], rtol=1e-3, atol=1e-4)
    return figures
