"""The loss of a network on one batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def _places(words: Tensor) -> Tensor:
    return torch.arange(words.size(1), device=words.device).expand_as(words)


def _of_words(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def label(net: Any, batch: Any) -> Tensor:
    inputs, labels = batch
    return functional.cross_entropy(net(inputs), labels)


def same_again(net: Any, batch: Any) -> Tensor:
    return functional.mse_loss(net(batch[0]), batch[0])


def next_word(net: Any, batch: Any) -> Tensor:
    (words,) = batch
    return _of_words(net(words, _places(words))[:, :-1], words[:, 1:])


def next_word_of_recurrent(net: Any, batch: Any) -> Tensor:
    (words,) = batch
    return _of_words(net(words)[:, :-1], words[:, 1:])


def next_word_of_library(net: Any, batch: Any) -> Tensor:
    (words,) = batch
    logits = net(input_ids=words, position_ids=_places(words), use_cache=False).logits
    return _of_words(logits[:, :-1], words[:, 1:])


def masked_word(net: Any, batch: Any) -> Tensor:
    (words,) = batch
    return _of_words(net(words.masked_fill(words % 5 == 0, 1), _places(words)), words)


def masked_word_of_library(net: Any, batch: Any) -> Tensor:
    (words,) = batch
    seen = words.masked_fill(words % 5 == 0, 1)
    return _of_words(net(input_ids=seen, position_ids=_places(words)).logits, words)


def translation(net: Any, batch: Any) -> Tensor:
    words, answers = batch
    return _of_words(
        net(input_ids=words, decoder_input_ids=answers, use_cache=False).logits[:, :-1],
        answers[:, 1:],
    )


def click(net: Any, batch: Any) -> Tensor:
    dense, sparse, clicked = batch
    return functional.binary_cross_entropy_with_logits(net(dense, sparse), clicked)
