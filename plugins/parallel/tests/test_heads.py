"""Heads of transformers' models are cut by words under `tensor`, and give what one device gives."""

import copy
import logging
import re
from functools import partial

import pytest
import torch
from language import (
    ALONE,
    WINDOWS,
    OfTransformers,
    assert_equals_one_device,
    on,
    refusal,
    train,
    transformers_model,
    words_of,
)
from torch import nn
from torch.nn import functional

from core_testing.training import assert_equal_tensors

pytest.importorskip("transformers")
_WORDS, _PLACES = words_of(3, 8)
_make = partial(transformers_model, "Llama", vocab_size=12)


def _call(model, **more):
    return model(input_ids=_WORDS, position_ids=_PLACES, use_cache=False, **more)


def _in_step(model):
    return functional.cross_entropy(_call(model).logits.flatten(0, 1), _WORDS.flatten())


def _inside(model):
    return _call(model, labels=_WORDS).loss


def _otherwise(model):
    logits = _call(model, labels=_WORDS).logits
    return (logits.softmax(-1) * logits.amax(-1, keepdim=True)).sum() + logits[0, 0, 3]


def _in_place(model):
    """A hook that forbids a word, as models of images do."""

    def forbid(module, args, logits):
        logits[..., 3] = -9
        return logits

    handle = getattr(model, "module", model).lm_head.register_forward_hook(forbid)
    loss = _inside(model)
    handle.remove()
    return loss


def _chosen(model):
    own = getattr(model, "module", model)
    return own.generate(_WORDS[:, :4], max_new_tokens=3, do_sample=False, pad_token_id=0)


def _compare(rank, tie):
    """By how much losses, gradients and choices differ from those of one device, and how many words
    of the head and the embedding a rank has.
    """
    fabric, found = rank.fabric(), []
    torch.manual_seed(0)
    module = _make(tie_word_embeddings=tie).double()
    seen = []
    module.lm_head.register_forward_hook(
        lambda _, __, logits: seen.append(float(logits.detach().sum()))
    )
    own = copy.deepcopy(module)
    model = fabric.setup(module)
    for loss in (_in_step, _inside, _otherwise, _in_place):
        results = [loss(model), loss(own)]
        fabric.backward(results[0])
        results[1].backward()
        pairs = [results, seen[-2:]]
        for one, other in zip(module.parameters(), own.parameters(), strict=True):
            whole = getattr(one.grad, "full_tensor", lambda grad=one.grad: grad)()
            pairs.append((whole, other.grad))
        found.append(max(float(abs(one - other).max()) for one, other in map(_tensors, pairs)))
    assert torch.equal(_chosen(model), _chosen(own))
    numbers = [
        one.weight.to_local().shape[0] for one in (module.lm_head, module.model.embed_tokens)
    ]
    assert (module.lm_head.weight is module.model.embed_tokens.weight) == tie
    fabric.teardown()
    return found, numbers


def _tensors(pair):
    return [torch.as_tensor(one).detach() for one in pair]


@pytest.mark.parametrize("tie", [pytest.param(False, marks=pytest.mark.slow), True])
def test_each_rank_has_its_words(tie):
    for found, numbers in on(in_process=True, tensor=2).run(_compare, tie):
        assert numbers == [6, 6]
        assert max(found) < 1e-6, found  # the library computes losses in 32 bits
        assert found[0] < 1e-12


class _Beside(nn.Module):
    """A step that uses the weight of a head by itself."""

    def __init__(self):
        super().__init__()
        self.model = _make()

    def forward(self):
        hidden = self.model.model(input_ids=_WORDS, position_ids=_PLACES).last_hidden_state
        return functional.linear(hidden, self.model.lm_head.weight)


def test_a_weight_beside_its_head_is_refused():
    for error in on(in_process=True, tensor=2).run(refusal, _Beside, lambda model, _: model()):
        assert re.search(r"used beside its layer \(.*\), and .* weight\.full_tensor\(\)", error), (
            error
        )


def _views_in_place(model, module):
    def forbid(_, __, logits):
        later = logits[:, 1:]
        later[..., 3] = -9

    module.lm_head.register_forward_hook(forbid)
    _in_step(model)


def test_a_view_of_parts_is_not_changed_in_place():
    for error in on(in_process=True, tensor=2).run(refusal, _make, _views_in_place):
        assert error.startswith("__setitem__ of what the model returned: with tensor= each rank")


def test_a_head_that_ranks_cannot_share_is_whole(caplog):
    def attempt(rank):
        fabric, module = rank.fabric(), _make(vocab_size=11)
        fabric.setup(module)
        fabric.teardown()
        return type(module.lm_head.weight), type(module.model.embed_tokens.weight)

    caplog.set_level(logging.INFO, "core_parallel.tensor.layers")
    for kinds in on(in_process=True, tensor=2).run(attempt):
        assert kinds == (nn.Parameter, nn.Parameter)
    said = [one.getMessage() for one in caplog.records if one.name == "core_parallel.tensor.layers"]
    assert (
        "'lm_head' has 11 words, which tensor=2 doesn't divide: every rank has it whole."
        in (said[0])
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh",
    [
        {"tensor": 2},
        {"tensor": 2, "shard": 2},
        {"tensor": 2, "pipeline": 2},
        {"tensor": 2, "context": 2},
    ],
    ids=str,
)
def test_a_weight_in_two_places_is_that_of_one_device(mesh, tmp_path):
    sizes = {"vocab_size": 12, "num_key_value_heads": 4}
    make = partial(OfTransformers, "Llama", **sizes, tie_word_embeddings=True)
    assert_equals_one_device(mesh, make, **WINDOWS)


@pytest.mark.slow
def test_a_run_goes_on_with_parts_of_words(tmp_path):
    make = partial(OfTransformers, "Llama", vocab_size=12, tie_word_embeddings=True)
    path = tmp_path / "checkpoint"
    on(tensor=2).run(partial(train, make=make, path=path, max_steps=4))
    for backend in (on(tensor=2), ALONE):
        again, _ = backend.run(partial(train, make=make, ckpt_path=path))[0]
        whole, _ = ALONE.run(partial(train, make=make))[0]
        assert_equal_tensors(again, whole, 1e-12)


def _loss_and_gradients(rank, make, compute):
    torch.manual_seed(0)
    fabric, user = rank.fabric(), make()
    model = fabric.setup(user)
    loss = compute(model)
    fabric.backward(loss)
    found = {
        name: getattr(one.grad, "full_tensor", lambda one=one: one.grad)()
        for name, one in user.named_parameters()
    }
    fabric.teardown()
    return {"loss": loss.detach(), **found}


_LATENT = {
    "head_dim": 4,
    "num_key_value_heads": 4,
    "v_head_dim": 8,
    "q_lora_rank": None,
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "n_routed_experts"), 4),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace"), 1),
    "kv_lora_rank": 8,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "compute", "mesh"),
    [
        (_make, _inside, {"tensor": 2, "context": 2, "context_attention": "gather"}),
        (partial(transformers_model, "DeepseekV2", **_LATENT), _in_step, {"tensor": 2}),
    ],
    ids=["labels of a part of the sequence", "keys that all heads use"],
)
def test_losses_and_gradients_are_those_of_one_device(make, compute, mesh):
    run = partial(_loss_and_gradients, make=make, compute=compute)
    (alone,) = ALONE.run(run)
    for found in on(**mesh).run(run):
        for name, expected in alone.items():
            assert torch.allclose(found[name].float(), expected.float(), atol=1e-5), name
