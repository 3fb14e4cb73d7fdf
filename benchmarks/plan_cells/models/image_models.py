"""Models of images."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.learner import Learner
from models.losses import label, same_again
from models.parts import (
    BLOCK_PLAN,
    WIDTH,
    Block,
    Chain,
    Patches,
    PlannedChain,
    Pooled,
    PooledMap,
    TwoLayers,
)
from models.samples import images


class ConvBlock(nn.Module):
    """A convolution and a group norm; half as high and wide."""

    def __init__(self, inner: int, width: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(inner, width, 3, padding=1), nn.GroupNorm(8, width)

    def forward(self, x: Tensor) -> Tensor:
        return functional.max_pool2d(functional.relu(self.norm(self.conv(x))), 2)


class Classes(nn.Module):
    """Two layers over all pixels."""

    def __init__(self, inner: int, width: int) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(inner, width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(functional.relu(self.hidden(x.flatten(1))))


def cnn() -> Learner:
    """A convolutional network."""
    blocks: list[nn.Module] = [ConvBlock(*sizes) for sizes in ((64, 128), (128, 256), (256, 512))]
    net = Chain([nn.Conv2d(3, 64, 3, padding=1)], blocks, [Classes(512 * 16, 512)])
    return Learner(net, label, images(32), 16)


class Residual(nn.Module):
    """A ResNet's: two convolutions with batch norms, beside what goes past."""

    def __init__(self, inner: int, width: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Conv2d(inner, width, 3, stride=stride, padding=1, bias=False),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
        )
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.past = nn.Conv2d(inner, width, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm1(self.first(x)))
        return functional.relu(self.norm2(self.second(y)) + self.past(x))


def resnet() -> Learner:
    """A ResNet, with batch norms."""
    sizes = ((48, 48, 1), (48, 96, 2), (96, 192, 2), (192, 384, 2), (384, 416, 1))
    blocks: list[nn.Module] = [Residual(*each) for each in sizes]
    net = Chain([nn.Conv2d(3, 48, 3, padding=1)], blocks, [PooledMap(416)])
    return Learner(net, label, images(32), 16, momentum=0.9)


class DoubleConv(nn.Module):
    """A U-Net's: two convolutions with group norms."""

    def __init__(self, inner: int, width: int) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Conv2d(inner, width, 3, padding=1),
            nn.Conv2d(width, width, 3, padding=1),
        )
        self.norm1, self.norm2 = nn.GroupNorm(8, width), nn.GroupNorm(8, width)

    def forward(self, x: Tensor) -> Tensor:
        return functional.silu(self.norm2(self.second(functional.silu(self.norm1(self.first(x))))))


class UNet(nn.Module):
    """Down and up again, with the maps of the way down beside those of the way up."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.downs = nn.ModuleList(
            DoubleConv(a, b) for a, b in zip((3, *widths[:-2]), widths[:-1], strict=True)
        )
        self.lowest = DoubleConv(widths[-2], widths[-1])
        self.ups = nn.ModuleList(
            DoubleConv(widths[n + 1] + widths[n], widths[n])
            for n in reversed(range(len(widths) - 1))
        )
        self.head = nn.Conv2d(widths[0], 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for down in self.downs:
            x = down(x)
            kept.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.lowest(x)
        for up in self.ups:
            x = up(torch.cat([functional.interpolate(x, scale_factor=2.0), kept.pop()], 1))
        return self.head(x)


def unet() -> Learner:
    """A U-Net."""
    return Learner(UNet((32, 64, 128, 256, 320)), same_again, images(32), 24)


def vit() -> Learner:
    """A vision transformer, with dropout."""
    blocks: list[nn.Module] = [Block(WIDTH, is_causal=False, dropout=0.1) for _ in range(6)]
    net = PlannedChain([Patches(64, 8, WIDTH)], blocks, [Pooled(WIDTH)])
    return Learner(net, label, images(64), 8, plan=BLOCK_PLAN)


class ConvNeXtBlock(nn.Module):
    """Liu et al., "A ConvNet for the 2020s": a wide depthwise convolution, a norm, and two layers
    over channels.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        return x + self.down(functional.gelu(self.up(y))).permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """Two stages of blocks."""

    def __init__(self, narrow: int, wide: int) -> None:
        super().__init__()
        self.stem, self.lower = (
            nn.Conv2d(3, narrow, 4, stride=4),
            nn.ModuleList(ConvNeXtBlock(narrow) for _ in range(2)),
        )
        self.down = nn.Conv2d(narrow, wide, 2, stride=2)
        self.upper, self.head = (
            nn.ModuleList(ConvNeXtBlock(wide) for _ in range(4)),
            PooledMap(wide),
        )

    def pipeline(self) -> list[Any]:
        return [self.stem, *self.lower, self.down, *self.upper, self.head]

    def forward(self, x: Tensor) -> Tensor:
        for part in self.pipeline():
            x = part(x)
        return x


def convnext() -> Learner:
    """A ConvNeXt."""
    return Learner(ConvNeXt(128, 384), label, images(64), 8)


class MixerBlock(nn.Module):
    """Tolstikhin et al., "MLP-Mixer": layers over positions, then over channels."""

    def __init__(self, positions: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.over_positions = TwoLayers(positions, 4 * positions)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.over_positions(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Mixer(Chain):
    """Blocks of which the layers over channels may be cut."""

    tensor_parallel_plan: ClassVar[dict[str, str]] = {
        "blocks.*.up": "colwise",
        "blocks.*.down": "rowwise",
    }


def mixer() -> Learner:
    """An MLP-Mixer."""
    net = Mixer([Patches(64, 8, 384)], [MixerBlock(64, 384) for _ in range(4)], [Pooled(384)])
    return Learner(net, label, images(64), 8, plan=Mixer.tensor_parallel_plan)
