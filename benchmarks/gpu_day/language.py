"""GPT-2 in a Trainer, beside the loop by hand."""

import statistics
import time
from functools import partial

import torch
from gpt2 import GPT2, MEDIUM, TINY

from core import Callback, Module
from gpu_day.setting import DAY, DEVICE, SMALL, expect, make_trainer, synchronize

GPT2_GOAL = 0.99
"""Tokens a second, as a share of the loop by hand."""


class Language(Module):
    """GPT-2 in a Trainer."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, batch_idx):
        return self.model.loss(batch)

    def configure_optimizers(self):
        return make_optimizer(self.model)


class Clock(Callback):
    """The time from after the warm-up to the end."""

    def __init__(self, num_warm):
        self.num_warm, self.began, self.took = num_warm, 0.0, 0.0

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if batch_idx == self.num_warm:
            synchronize()
            self.began = time.perf_counter()

    def on_train_end(self, trainer, module):
        synchronize()
        self.took = time.perf_counter() - self.began


def make_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=3e-4, fused=not SMALL)


def by_hand(model, batches, num_warm):
    """The loop that the Trainer is compared with."""
    model.to(DEVICE).train()
    optimizer = make_optimizer(model)
    began = 0.0
    for number, batch in enumerate(batches):
        if number == num_warm:
            synchronize()
            began = time.perf_counter()
        batch = batch.to(DEVICE, non_blocking=True)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss = model.loss(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    synchronize()
    return time.perf_counter() - began


def with_trainer(module, batches, num_warm):
    clock = Clock(num_warm)
    make_trainer(precision="bf16-mixed", callbacks=[clock]).fit(module, batches)
    return clock.took


def gpt2():
    """Tokens a second of both, in turns, and the memory of each at its peak."""
    config = TINY if SMALL else MEDIUM
    batch_size = 2 if SMALL or torch.cuda.get_device_properties(0).total_memory < 20e9 else 8
    num_warm, num_steps = (2, 6) if SMALL else (3, 20)
    generator = torch.Generator().manual_seed(3)
    batches = [
        torch.randint(config.vocabulary, (batch_size, config.context + 1), generator=generator)
        for _ in range(num_warm + num_steps)
    ]
    batches = batches if SMALL else [batch.pin_memory() for batch in batches]
    models = [GPT2(config), GPT2(config)]
    models[1].load_state_dict(models[0].state_dict())
    own, module = models[0], Language(models[1])
    peaks, rates = {"by hand": [], "Trainer": []}, {"by hand": [], "Trainer": []}
    deadline = time.perf_counter() + 0.6 * DAY["limit_s"]
    rounds = 0
    while rounds < 2 or (rounds < 9 and time.perf_counter() < deadline):
        contenders = [
            ("by hand", partial(by_hand, own, batches, num_warm)),
            ("Trainer", partial(with_trainer, module, batches, num_warm)),
        ]
        for name, contender in contenders if rounds % 2 else contenders[::-1]:
            for each in models:  # both begin on the host, wherever the last round has left them
                each.to("cpu")
            if not SMALL:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                resident = torch.cuda.memory_allocated()
            took = contender()
            rates[name].append(num_steps * batch_size * config.context / took)
            if not SMALL:
                peaks[name].append(torch.cuda.max_memory_allocated() - resident)
            for each in models:
                each.zero_grad(set_to_none=True)
        rounds += 1
    # The first round has warmed up what there is to warm up.
    ratios = [
        ours / theirs
        for ours, theirs in zip(rates["Trainer"][1:], rates["by hand"][1:], strict=True)
    ]
    figures = {
        "parameters, M": round(sum(each.numel() for each in own.parameters()) / 1e6, 1),
        "batch": f"{batch_size} x {config.context}",
        **{f"{name}, tokens/s": round(statistics.median(each[1:])) for name, each in rates.items()},
        "Trainer / by hand": round(statistics.median(ratios), 4),
        "rounds": [round(each, 4) for each in ratios],
    }
    figures |= {
        f"{name}, peak MB above what rests": round(max(each[1:]) / 1e6)
        for name, each in peaks.items()
        if each
    }
    if not SMALL:
        expect(figures["Trainer / by hand"] >= GPT2_GOAL, f"{figures}: the goal is {GPT2_GOAL}")
    return figures
