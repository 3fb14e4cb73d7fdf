"""`core plan --prove`: what is wrong with a program, found before it runs."""

import json

import pytest
import torch
from plan_nets import WIDTH, Net
from torch import nn

from core import STRATEGY_REGISTRY, ModuleError, Trainer
from core.contract import refuse
from core_ddp import DDPStrategy
from core_plan import prove
from core_testing import programs

MODEL = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from core import Module, Trainer

WIDTH, LENGTH = 64, 64


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 128), nn.Linear(128, WIDTH)

    def forward(self, x):
        given = (self.query(x), self.key(x), self.value(x))
        heads = (one.unflatten(-1, (-1, 4)).transpose(1, 2) for one in given)
        seen = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.output(seen.transpose(1, 2).flatten(2))
        middle = F.gelu(self.up(x))
        # in the block
        return x + self.down(middle)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.places = nn.Embedding(32, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, 32)

    def forward(self, tokens, places):
        x = self.embed(tokens) + self.places(places)
        for one in self.blocks:
            x = one(x)
        # behind the blocks
        return self.head(x)


class Net(Module):
    tensor_parallel_plan = {
        f"model.blocks.*.{name}": kind
        for kind, names in {"colwise": "query key value up", "rowwise": "output down"}.items()
        for name in names.split()
    }

    def __init__(self):
        super().__init__()
        self.model = Model()

    def training_step(self, batch):
        places = torch.arange(LENGTH).expand(len(batch), -1)
        logits = self.model(batch[:, :-1], places)
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        # with the loss
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self):
        return DataLoader(torch.randint(32, (2**11, LENGTH + 1)), batch_size=4)


if __name__ == "__main__":
    Trainer(accelerator="cpu", max_epochs=1).fit(Net())
"""
ATTENDS_TO_ALL = "context_attention=gather"


@pytest.fixture
def core_prove(tmp_path):
    def run(strategy, *arguments, **changes):
        program = MODEL
        for place, text in changes.items():
            found = f"# {place.replace('_', ' ')}\n"
            assert found in program
            program = program.replace(found, f"{text}\n")
        (tmp_path / "train.py").write_text(program, encoding="utf-8")
        command = [*programs.CORE, "plan", "train.py", "--prove", "--strategies", strategy]
        done = programs.run([*command, *arguments], cwd=tmp_path, timeout=240)
        return done.returncode, done.stdout.splitlines()[1:]

    return run


def line_of(text):
    before, _, _ = MODEL.partition(text)
    return f"train.py:{before.count(chr(10)) + 1}"


def test_each_thing_that_is_wrong_has_a_line(core_prove):
    status, (answer, *lines) = core_prove(
        f"parallel:tensor=2,context=2,{ATTENDS_TO_ALL}",
        "--devices=4",
        in_the_block="middle = middle / middle.norm(dim=-1, keepdim=True)",
        behind_the_blocks="x = x - x.mean(1, keepdim=True)",
        with_the_loss="loss = loss if loss.item() < 5 else loss / 2",
    )
    assert status == 1
    assert answer.endswith("  wrong")
    assert [line.split(": ")[:3] for line in lines] == [
        [f"    {line_of('# in the block')}", "tensor", lines[0].split(": ")[2]],
        [f"    {line_of('# behind the blocks')}", "context", lines[1].split(": ")[2]],
        [f"    {line_of('# with the loss')}", "not proven", lines[2].split(": ")[2]],
    ]
    assert "linalg_vector_norm" in lines[0]
    assert "'colwise_gather_output'" in lines[0], "the cure"
    assert "mean" in lines[1]
    assert "taken to be 1.0" in lines[2]


@pytest.mark.slow
def test_a_right_program_on_4096_ranks(core_prove):
    strategy = f"parallel:tensor=4,context=8,data=128,{ATTENDS_TO_ALL}"
    status, lines = core_prove(strategy, "--devices=8", "--num-nodes=512")
    assert status == 0, lines
    (line,) = lines
    assert line.startswith(f"{strategy}  right: followed along tensor, context; ranks 0, ")
    assert line.endswith(", 4095 exchange the same")


@pytest.mark.parametrize(
    ("changes", "answer"),
    [
        ({}, "right"),
        ({"with_the_loss": "loss = loss * len(batch)"}, "wrong"),
    ],
    ids=["mean", "sum"],
)
def test_a_schedule(core_prove, changes, answer):
    strategy = "parallel:pipeline=2,data=256,schedule=1F1B"
    status, lines = core_prove(strategy, "--devices=8", "--num-nodes=64", "--json", **changes)
    (found,) = json.loads("\n".join(["{", *lines]))["proofs"]
    assert (status, found["answer"]) == (int(answer == "wrong"), answer), found
    if answer == "wrong":
        (finding,) = found["findings"]
        assert finding["axis"] == "pipeline"
        assert finding["place"] == line_of("# with the loss")
        assert "isn't the mean" in finding["text"]
    else:
        assert found["axes"] == ["microbatches, in the step around the model"]
        assert found["ranks"] == [0, 256], "those of one pipeline"


def _prove(make, strategy, devices=2, **options):
    (found,) = prove(make, strategies=[strategy], devices=devices, **options)
    return found


@pytest.mark.parametrize("strategy", ["fsdp", "ddp", "parallel:data=2"])
def test_what_is_not_followed_has_run(strategy):
    found = _prove(Net, strategy)
    assert (found.answer, found.findings, found.ranks) == ("ran", [], [0, 1])


def test_a_strangers_strategy_refuses_what_it_likes():
    class Particular(DDPStrategy):
        """Dislikes layers."""

        def setup_module(self, module):
            for name, one in module.named_modules():
                if isinstance(one, nn.Linear):
                    refuse(ModuleError(f"{name} is a layer. Take it out."), axis="mine")
            return super().setup_module(module)

    STRATEGY_REGISTRY.register("particular", Particular)
    found = _prove(Net, "particular")
    assert found.answer == "wrong"
    assert [one.text.split()[0] for one in found.findings] == ["layers.0", "layers.1"]
    assert {one.axis for one in found.findings} == {"mine"}


class Alone(Net):
    """Its first rank waits for the others, which don't."""

    def training_step(self, batch):
        if self.trainer.is_global_zero:
            self.trainer.strategy.barrier()
        return super().training_step(batch)


class Sums(Net):
    """Ranks sum another number of values."""

    def training_step(self, batch):
        torch.distributed.all_reduce(torch.ones(1 + self.trainer.global_rank))
        return super().training_step(batch)


@pytest.mark.parametrize(
    ("make", "said"),
    [(Alone, "rank 0 calls barrier"), (Sums, "rank 0 calls allreduce of [1]")],
)
def test_ranks_that_exchange_different_things(make, said):
    found = _prove(make, "ddp", devices=8, num_nodes=8)
    assert found.answer == "wrong"
    assert said in found.findings[0].text
    assert "test_prove.py:" in found.findings[0].place


class Halved(torch.autograd.Function):
    """Halves gradients."""

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        return gradient / 2


class Own(Net):
    """Has a Function and a hook on what parts of a sequence are computed into."""

    def training_step(self, batch):
        return self.layers(batch[:, None].expand(-1, 8, -1)).square().mean()

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(self.layers, _Halving(), nn.Linear(WIDTH, WIDTH))


class _Halving(nn.Module):
    def forward(self, x):
        x = Halved.apply(x) + 0
        x.register_hook(lambda gradient: gradient / 2)
        return x


def test_gradients_that_user_code_changes_are_not_proven():
    found = _prove(Own, "parallel:context=2")
    assert found.answer == "not proven", found
    assert [one.text.partition(" computes")[0] for one in found.findings] == [
        "What the backward of Halved",
        "What a hook of a gradient",
    ]
    assert all(one.place.startswith(__file__) for one in found.findings)


def test_an_error_that_ends_the_step_is_at_its_line():
    class Wider(Net):
        """Doesn't fit."""

        def training_step(self, batch):
            return self.layers(torch.cat([batch, batch], 1)).mean()

    found = _prove(Wider, "fsdp")
    assert found.answer == "wrong"
    assert "test_prove.py:" in found.findings[0].place
    assert "[8, 1024] X [512, 512]" in found.findings[0].text


def test_one_step_is_all_that_a_proof_takes(tmp_path):
    class Short(Net):
        """Has data for one step."""

        def train_dataloader(self):
            return torch.utils.data.DataLoader(torch.ones(8, WIDTH), batch_size=8)

    script = tmp_path / "train.py"
    script.write_text("print('nothing')\n")
    assert _prove(Short, "single_device", devices=1).answer == "ran"
    assert _prove(str(script), "single_device", devices=1).answer == "not proven"


def test_this_process_stays_as_it_was():
    before = Trainer.fit, torch.distributed.broadcast_object_list
    _prove(Net, "fsdp")
    assert before == (Trainer.fit, torch.distributed.broadcast_object_list)
