"""Twenty models, each as a module with its step, its optimizer and its data, as users write them.

State (parameters, gradients, optimizer) takes 64 MiB or more in float32; a step of one process
takes under a second on one core. Every one has repeated blocks of one class, and can be built on
meta. Nothing here imports a planner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from models.feature_models import autoencoder, batchnorm, mlp, recommender
from models.image_models import cnn, convnext, mixer, resnet, unet, vit
from models.recurrent_models import gru, lstm
from models.transformer_models import bert, encoder, gpt, llama, lora, mixture, t5, tied

if TYPE_CHECKING:
    from collections.abc import Callable

    from models.learner import Learner

_ALL: tuple[Callable[[], Learner], ...] = (
    mlp,
    cnn,
    resnet,
    unet,
    gpt,
    llama,
    mixture,
    vit,
    lstm,
    tied,
    lora,
    batchnorm,
    t5,
    bert,
    autoencoder,
    gru,
    encoder,
    recommender,
    convnext,
    mixer,
)
MODELS: dict[str, Callable[[], Learner]] = {make.__name__: make for make in _ALL}
"""Makes each model; seed torch before."""
