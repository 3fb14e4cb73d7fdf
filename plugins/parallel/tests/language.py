"""A small language model in parts, with a plan, and with experts; and what is compared with one
device.
"""

import copy
from functools import partial
from math import prod

import pytest
import torch
import torch.distributed.checkpoint  # here once, and not in each rank
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from core import Callback, CoreError, Module
from core_parallel import ExpertList, MeshParallelStrategy
from core_parallel.pipeline import scheduled_step  # noqa: F401  # likewise
from core_testing.ranks import Backend
from core_testing.training import assert_equal_tensors, whole

WORDS, WIDTH, HEADS, NUM_EXPERTS = 11, 16, 4, 4
WINDOWS = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.3, "max_steps": 3}
"""Options of a Trainer, for windows of two epochs."""
ALONE = Backend(lambda: "single_device", in_process=True)


class Attention(nn.Module):
    """Causal attention, as it stands in small language models."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (
            part(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        return self.out(
            functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            .transpose(1, 2)
            .flatten(2)
        )


class Block(nn.Module):
    """Attention and a network, with a number that isn't learned."""

    def __init__(self):
        super().__init__()
        self.before, self.attention, self.between = (
            nn.LayerNorm(WIDTH),
            Attention(),
            nn.LayerNorm(WIDTH),
        )
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x):
        x = x + self.scale * self.attention(self.before(x))
        return x + self.down(functional.gelu(self.up(self.between(x))))


class Start(nn.Module):
    """Words and their places."""

    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(64, WIDTH)

    def forward(self, words, places):
        return self.embed(words) + self.place(places)


class Net(nn.Module):
    """A language model whose parts are enough for two stages on each of two ranks."""

    tensor_parallel_plan = {
        **{f"blocks.*.attention.{name}": "colwise" for name in ("query", "key", "value")},
        **dict.fromkeys(("blocks.*.attention.out", "blocks.*.down"), "rowwise"),
        "blocks.*.up": "colwise",
    }

    def __init__(self, num_blocks=2):
        super().__init__()
        self.start, self.blocks = Start(), nn.ModuleList(Block() for _ in range(num_blocks))
        self.head = nn.Linear(WIDTH, WORDS)

    def pipeline(self):
        return [self.start, *self.blocks, self.head]

    def forward(self, words, places):
        return self.behind_start(self.start(words, places))

    def behind_start(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Adapter(nn.Module):
    """A layer with a low-rank adapter, in the form of peft."""

    def __init__(self, layer):
        super().__init__()
        self.base_layer = layer.requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(layer.in_features, 3, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(3, layer.out_features, bias=False)})

    def forward(self, x):
        return self.base_layer(x) + 2 * self.lora_B["default"](self.lora_A["default"](x))


class Adapted(Net):
    """Adapters around layers that are cut by columns, and by rows."""

    def __init__(self):
        super().__init__()
        self.requires_grad_(False)
        for block in self.blocks:
            block.attention.query = Adapter(block.attention.query)
            block.down = Adapter(block.down)


class Stacked(nn.Module):
    """Experts with 3-D weights, as they stand in transformers' models."""

    def __init__(self, num_experts=NUM_EXPERTS):
        super().__init__()
        self.num_experts = num_experts
        self.up = nn.Parameter(torch.randn(num_experts, 2 * WIDTH, WIDTH) / 4)
        self.down = nn.Parameter(torch.randn(num_experts, WIDTH, 2 * WIDTH) / 4)

    def forward(self, tokens, numbers, weights):
        result = torch.zeros_like(tokens)
        for number in range(self.num_experts):
            place, choice = torch.where(numbers == number)
            hidden = functional.gelu(tokens[place] @ self.up[number].T) @ self.down[number].T
            result = result.index_add(
                0, place, (hidden * weights[place, choice, None]).to(result.dtype)
            )
        return result


def one_expert():
    """One of a list."""
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))


def listed():
    """Experts as a list."""
    return ExpertList(one_expert() for _ in range(NUM_EXPERTS))


class Mixture(Block):
    """A block whose network is a mixture. Some choices go nowhere: their expert has a number past
    the last.
    """

    def __init__(self, experts):
        super().__init__()
        del self.up, self.down
        self.gate, self.experts = nn.Linear(WIDTH, experts.num_experts, bias=False), experts

    def forward(self, x):
        x = x + self.attention(self.before(x))
        tokens = self.between(x).flatten(0, 1)
        weights, numbers = self.gate(tokens).softmax(-1).topk(2)
        # By the token itself and not by its place, so that it is the same one on every rank.
        numbers = numbers.where(tokens[:, :2] < 1.2, self.experts.num_experts)
        return x + self.experts(tokens, numbers, weights).view_as(x)


class MixtureNet(Net):
    """Experts with stacked weights, and made of a list; a plan for their attention."""

    tensor_parallel_plan = {
        **{f"blocks.*.attention.{name}": "colwise" for name in ("query", "key", "value")},
        "blocks.*.attention.out": "rowwise",
    }

    def __init__(self, *experts):
        super().__init__()
        self.blocks = nn.ModuleList(map(Mixture, experts or (Stacked(), listed())))


class OddExperts(MixtureNet):
    """As many as two ranks can't share."""

    tensor_parallel_plan = {"blocks.*.experts": "moe_tp_experts"}

    def __init__(self):
        super().__init__(Stacked(3))


class Step(Module):
    """A step whose loss is the mean over the words that count: of a batch, of a window, over all
    shares.
    """

    def __init__(self, make=Net):
        super().__init__()
        torch.manual_seed(0)
        self.net = make()
        self.scale = nn.Parameter(torch.ones(1))
        self.double()

    def compute(self, words):
        return self.net(words, torch.arange(words.shape[1]).expand_as(words))

    def training_step(self, batch, batch_idx):
        words = batch[0]
        answer = self.compute(words[:, :-1]) * self.scale
        targets = words[:, 1:].where(words[:, 1:] > 1, -100)
        loss = functional.cross_entropy(answer.flatten(0, 1), targets.flatten(), ignore_index=-100)
        # A penalty beside the call of the model.
        loss = loss + 0.01 * self.scale.square().sum()
        self.log("loss", loss)
        return {"loss": loss, "weight": int((targets != -100).sum())}

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def transformers_model(name, **options):
    """A small model of that library."""
    transformers = pytest.importorskip("transformers")
    heads = {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "num_hidden_layers": 2,
    }
    experts = {
        "num_experts": NUM_EXPERTS,
        "num_local_experts": NUM_EXPERTS,
        "num_experts_per_tok": 2,
    }
    sizes = {
        "vocab_size": WORDS,
        "hidden_size": WIDTH,
        "intermediate_size": 32,
        "max_position_embeddings": 64,
    }
    config = getattr(transformers, f"{name}Config")(
        **{**sizes, **heads, **experts, "moe_intermediate_size": 24, **options}
    )
    config._experts_implementation = "eager"  # torch's grouped product has no float64
    task = "MaskedLM" if name == "Bert" else "CausalLM"
    return getattr(transformers, f"{name}For{task}")(config)


class OfTransformers(Step):
    """The step with such a model."""

    def __init__(self, name, **options):
        super().__init__(partial(transformers_model, name, **options))

    def compute(self, words):
        places = torch.arange(words.shape[1]).expand_as(words)
        return self.net(input_ids=words, position_ids=places, use_cache=False).logits


class Seen(Callback):
    """The weights at the end, whole."""

    def __init__(self):
        self.weights = {}

    def on_train_end(self, trainer, module):
        state = trainer.strategy.get_module_state_dict(module)
        self.weights = {name: whole(value, trainer.strategy) for name, value in state.items()}


class Saves(Callback):
    """A checkpoint at the end."""

    def __init__(self, path):
        self.path = path

    def on_train_end(self, trainer, module):
        trainer.save_checkpoint(self.path)


def loader(batch_size, num_samples=29):
    words = torch.randint(0, WORDS, (num_samples, 9), generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(words), batch_size=batch_size)


def on(*, in_process=False, **mesh):
    """The ranks of such a mesh, as many as its axes make."""
    num_processes = prod(
        mesh.get(axis, 1) for axis in ("pipeline", "data", "shard", "context", "tensor")
    )
    shared = prod(mesh.get(axis, 1) for axis in ("pipeline", "context", "tensor"))
    strategy = partial(MeshParallelStrategy, **mesh)
    return Backend(strategy, "cpu", num_processes, num_processes // shared, in_process=in_process)


def train(rank, make=Step, ckpt_path=None, path=None, callbacks=(), **options):
    """The weights after 10 batches, of which the last of each epoch has 5 samples, so that shares
    differ; and values.

    Args:
        rank: this one.
        make: the module.
        ckpt_path: of a checkpoint to begin from.
        path: of one to write at the end.
        callbacks: further ones.
        options: of the Trainer.
    """
    seen, module = Seen(), make()
    torch.manual_seed(5 + rank.number)
    callbacks = [seen, *callbacks, *([] if path is None else [Saves(path)])]
    trainer = rank.trainer(callbacks=callbacks, **{"max_steps": 10, "max_epochs": 20, **options})
    trainer.fit(module, loader(8 // rank.backend.data_parallel_size), ckpt_path=ckpt_path)
    return seen.weights, {name: float(value) for name, value in trainer.callback_metrics.items()}


def assert_equals_one_device(mesh, make=Step, tolerance=1e-12, **options):
    """Train on a mesh and on one device, and compare the weights, and values where all ranks have
    all data.
    """
    backend, function = on(**mesh), partial(train, make=make, **options)
    weights, values = backend.run(function)[0]
    expected, expected_values = ALONE.run(function)[0]
    assert_equal_tensors(weights, expected, tolerance)
    if backend.data_parallel_size == 1:
        assert values == pytest.approx(expected_values, abs=tolerance)


def _use(fabric, net, call):
    model = fabric.setup(net)
    if call is not None:
        call(model, net)


def refusal(rank, make, call=None):
    """The text of the error in which the set-up of a module ends, or `call(model, module)`."""
    fabric = rank.fabric()
    with pytest.raises((CoreError, RuntimeError)) as caught:
        _use(fabric, make(), call)
    fabric.teardown()
    return " ".join((str(caught.value), *getattr(caught.value, "__notes__", ())))


def words_of(num_samples, length):
    """Arguments of a model."""
    words = torch.randint(
        0, WORDS, (num_samples, length), generator=torch.Generator().manual_seed(1)
    )
    return words, torch.arange(length).expand(num_samples, -1)


def differences(rank, make, calls):
    """By how much the loss that each call makes of a model, and its gradients, differ from those of
    one device.
    """
    found = []
    for call in calls:
        fabric = rank.fabric()
        torch.manual_seed(0)
        module = make()
        own = copy.deepcopy(module)
        loss, expected = call(fabric.setup(module)), call(own)
        fabric.backward(loss)
        expected.backward()
        pairs = [(loss, expected)]
        for one, other in zip(module.parameters(), own.parameters(), strict=True):
            if other.grad is not None:
                pairs.append((whole(one.grad, fabric.strategy), other.grad))
        found.append(max(float((one - other).detach().abs().max()) for one, other in pairs))
        fabric.teardown()
    return found
