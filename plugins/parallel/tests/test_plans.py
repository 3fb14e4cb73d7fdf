"""Models of transformers are cut by the plan of their config, and compute what one device does; or
are refused.
"""

import copy
from functools import partial
from types import SimpleNamespace

import pytest
import replays
import torch
from language import ALONE, WORDS, Seen, on, transformers_model
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from core import CoreError, Module
from core_parallel.modules import absent
from core_parallel.pipeline import batch_norms
from core_parallel.stages import parts
from core_parallel.stages.layout import Layout
from core_testing.training import assert_equal_tensors

_NEEDED = "needs transformers, which the extra hugging-face brings"


class Layer(nn.Module):
    """A layer in the manner of transformers: it is given what the model has made beside the
    states.
    """

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, states, mask=None, positions=None):
        return states + self.linear(states).tanh() * positions * (
            1 if mask is None else mask[..., None]
        )


class Base(nn.Module):
    """Its forward computes with the embedding, makes positions, and hands masks on."""

    config = SimpleNamespace(
        base_model_pp_plan={
            "embed": (["ids"], ["states"]),
            "layers": (["states", "mask"], ["states"]),
            "norm": (["states"], ["states"]),
        }
    )

    def __init__(self):
        super().__init__()
        self.embed, self.places = nn.Embedding(WORDS, 4), nn.Embedding(9, 4)
        self.layers, self.norm = nn.ModuleList(Layer() for _ in range(4)), nn.LayerNorm(4)

    def forward(self, ids, mask=None, cache=None, embedded=None):
        states = self.embed(ids) if embedded is None else embedded
        positions = self.places(torch.arange(states.shape[1]))
        states = states * 2.0 + positions
        for layer in self.layers:
            states = layer(states, mask=mask, positions=positions)
        return self.norm(states)


class Head(nn.Module):
    """A head whose class has a plan, which also has that of the base, and a loss."""

    _pp_plan = {
        **{f"model.{name}": way for name, way in Base.config.base_model_pp_plan.items()},
        "head": (["states"], ["logits"]),
    }

    def __init__(self, base=None):
        super().__init__()
        self.model, self.head = Base() if base is None else base, nn.Linear(4, WORDS)

    def forward(self, ids, labels=None, **others):
        logits = self.head(self.model(ids, **others)[:, :-1]) / 3.0
        return {"logits": logits, "loss": labels if labels is None else logits.sum() + labels.sum()}


class User(nn.Module):
    """A module around it."""

    def __init__(self, make=Head):
        super().__init__()
        self.net = make()


class Unplanned(Base):
    """Nothing says its parts, and it has blocks."""

    config = None


def _tied():
    found = Head(Unplanned())
    found.head.weight = found.model.embed.weight
    return found


class Looks(Layer):
    """A layer that looks at numbers, of which there are none on meta, as experts do."""

    def forward(self, states, mask=None, positions=None):
        torch.nonzero(states > 0)
        return super().forward(states, mask, positions)


def _looking(base):
    found = Head(base())
    found.model.layers = nn.ModuleList(Looks() for _ in range(4))
    return found


def words(num_samples=3):
    return torch.arange(num_samples * 9).reshape(num_samples, 9) % WORDS


@pytest.mark.parametrize(
    ("make", "name"),
    [
        *(
            (User, "net"),
            (partial(User, Base), "net"),
            (Base, ""),
            (partial(User, _tied), "net"),
            (Unplanned, ""),
        ),
        *((partial(User, partial(_looking, base)), "net") for base in (Base, Unplanned)),
    ],
)
def test_each_stage_computes_with_its_own_parts_and_what_lies_between(make, name):
    user = make().double()
    ids, mask = words(), torch.ones(3, 9, dtype=torch.float64).tril()
    owner = user.get_submodule(name)
    expected = owner(ids, mask=mask)
    given, known = None, {}
    for stage in range(3):
        own = copy.deepcopy(user)
        layout = Layout(own, parts.cut(own, 3), 3, stage)
        assert layout.module is own.get_submodule(name)
        absent.drop(
            [part for _, part in layout.absent_modules()], torch.device("cpu"), layout.owners()
        )
        layout.cut.replay.learn(known)
        given = layout.run(stage, ((ids,), {"mask": mask}), given)
        known = layout.cut.replay.known(layout.places_of(stage)[1])
    found = layout.cut.replay.around(given, (ids,), {"mask": mask})
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-15)
    assert list(dict(own.named_modules())) == list(dict(user.named_modules())), (
        "parts are in their places again"
    )


def test_a_forward_with_blocks_around_its_parts_comes_to_its_end():
    class _Blocks(Base):
        """Its forward calls parts in a block, and ends by a computation in place."""

        def __init__(self):
            super().__init__()
            self.ends = []

        def forward(self, ids, **others):
            try:
                with torch.random.fork_rng([]):
                    states = super().forward(ids, **others)
                states += self.places.weight.sum()
                self.ends.append("reached")
                return states
            finally:
                self.ends.append("finally")

    user = User(partial(Head, _Blocks())).double()
    expected = user.net(words())["logits"]
    given, known = None, {}
    for stage in range(3):
        own = copy.deepcopy(user)
        own.net.model.ends.clear()
        layout = Layout(own, parts.cut(own, 3), 3, stage)
        absent.drop(
            [part for _, part in layout.absent_modules()], torch.device("cpu"), layout.owners()
        )
        layout.cut.replay.learn(known)
        given = layout.run(stage, ((words(),), {}), given)
        known = layout.cut.replay.known(layout.places_of(stage)[1])
        calls = own.net.model.ends
        assert calls == ["reached", "finally"] * (len(calls) // 2)
    found = layout.cut.replay.around(given, (words(),), {})["logits"]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-15)


def test_a_weight_of_parts_on_several_ranks_is_on_all():
    class _Tied(Head):
        def __init__(self):
            super().__init__()
            self.head.weight = self.model.embed.weight

    user = _Tied()
    for position, in_v in ((0, False), (1, False), (1, True)):
        own = copy.deepcopy(user)
        layout = Layout(
            own, parts.cut(own, 4 if in_v else 3), 2 if in_v else 3, position, in_v=in_v
        )
        assert absent.drop(
            [part for _, part in layout.absent_modules()], torch.device("cpu"), layout.owners()
        )
        assert own.head.weight is own.model.embed.weight, "it is one weight, here or elsewhere"
        assert absent.is_absent(own.head.weight) == in_v, (
            "one rank that has both stages has it alone"
        )


class _Skips(Base):
    def forward(self, ids, **others):
        return self.norm(self.embed(ids))


class _Ends(Base):
    def forward(self, ids, **others):
        return self.embed(ids)


class _Twice(Base):
    def forward(self, ids, **others):
        return super().forward(ids) + self.norm(self.embed(ids))


class _Early(Base):
    """Its layers get the embedding once more."""

    def forward(self, ids, **others):
        states = first = self.embed(ids)
        for layer in self.layers:
            states = layer(states, positions=first)
        return self.norm(states)


class _Cache:
    def get_seq_length(self):
        return 0


@pytest.mark.parametrize(
    ("make", "others", "expected"),
    [
        (
            _Skips,
            {},
            r"_Skips called its part 'norm' where 'layers\.0' comes next by the plan of its config",
        ),
        (_Ends, {}, r"_Ends returned without a call of 'layers\.0', which is one of its parts"),
        (_Twice, {}, "_Twice called its part 'embed' where nothing more comes next"),
        (
            Base,
            {"embedded": torch.zeros(3, 9, 4)},
            "where 'embed' comes next .* give the model input_ids",
        ),
        (_Early, {}, r"computes 'layers\.\d' also from results of other parts than the one before"),
        (
            Base,
            {"output_attentions": True},
            "Base was asked for output_attentions, which layers on all ranks",
        ),
        (
            Base,
            {"cache": _Cache()},
            "Base was given a _Cache, in which each rank .* Generate text after training",
        ),
    ],
)
def test_what_a_plan_does_not_give_is_refused_by_name(make, others, expected):
    user = make()
    layout = Layout(user, parts.cut(user, 3), 3, 0)
    with pytest.raises(CoreError, match=expected):
        replays.call(layout, words(), **others)


def test_what_blocks_do_not_give_is_refused_by_name():
    class _Towers(nn.Module):
        """Blocks of which the result needs those in the middle too, or a batch norm before them."""

        def __init__(self, *, norm=False):
            super().__init__()
            self.norm = nn.BatchNorm1d(4) if norm else nn.Identity()
            self.left, self.right = (
                nn.ModuleList(nn.Linear(4, 4) for _ in range(2)) for _ in range(2)
            )

        def forward(self, x):
            left = right = self.norm(x)
            for block in self.left:
                left = block(left)
            for block in self.right:
                right = block(right)
            return left * right

    towers = Layout(user := _Towers(), parts.cut(user, 2), 2, 0)
    with pytest.raises(
        CoreError, match=r"computes its result also from .* 'right\.1' alone is shared by all ranks"
    ):
        replays.call(towers, torch.ones(3, 4))
    normed = Layout(user := _Towers(norm=True), parts.cut(user, 2), 2, 0)
    with pytest.raises(CoreError, match=r"BatchNorm1d 'norm' is in no part of the pipeline"):
        batch_norms.microbatches_for(normed, None, None)


class _Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.student, self.teacher = Head(), Head()


class _Other(nn.Module):
    config = SimpleNamespace(base_model_pp_plan={"wte": (), "h": ()})


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (_Pair, "_Pair has several modules that could be cut: 'student', 'teacher'"),
        (
            _Other,
            "_Other has a config whose base_model_pp_plan names 'wte', 'h', and no module has them "
            "all",
        ),
    ],
)
def test_plans_that_leave_a_choice_are_refused(make, expected):
    with pytest.raises(CoreError, match=expected):
        parts.cut(make(), 2)


def test_one_of_two_models_is_named():
    pair = _Pair()
    for name in ("student", "teacher"):
        cut = parts.cut(pair, 2, [name])
        assert cut.called == (pair.get_submodule(name),)
        others = [part for _, part in Layout(pair, cut, 2, 0).absent_modules()]
        assert others
        assert {id(part) for part in others} <= {
            id(part) for part in pair.get_submodule(name).modules()
        }
    sequences = nn.ModuleDict(
        {name: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for name in ("one", "other")}
    )
    assert parts.cut(sequences, 2, ["other"]).called[0] is sequences["other"]
    with pytest.raises(
        CoreError,
        match=r"several modules that could be cut.* as in parts=\['one'\]; all ranks have the",
    ):
        parts.cut(sequences, 2)


def test_a_pipeline_of_the_users_own_counts_before_a_plan():
    class _Declares(Head):
        def pipeline(self):
            return [self.model, self.head]

    user = _Declares()
    assert parts.cut(user, 2).stages == ((user.model,), (user.head,))
    names = ["net.model.embed", "net.model.layers.*", "net.model.norm"]
    user = User()
    assert parts.cut(user, 2, names).called == (user.net.model,)


# transformers -------------------------------------------------------------------------------------


def build(name="Llama", **options):
    """A small causal language model."""
    torch.manual_seed(0)
    given = {"num_hidden_layers": 3, "tie_word_embeddings": False, "pad_token_id": 0, **options}
    return transformers_model(name, **given)


class Causal(Module):
    """A step as it stands in every example: padded texts and their labels in, a loss out."""

    def __init__(self, name, **options):
        super().__init__()
        self.model = build(name, **options).double()

    def training_step(self, batch, batch_idx):
        words, mask = batch
        output = self.model(input_ids=words, attention_mask=mask, labels=words)
        self.log("loss", output.loss)
        return output.loss

    def validation_step(self, batch, batch_idx):
        words, mask = batch
        self.log("error", self.model(input_ids=words, attention_mask=mask, labels=words).loss)

    def predict_step(self, batch, batch_idx):
        return self.model(*batch).logits

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def texts(num_samples, batch_size):
    words = torch.randint(1, WORDS, (num_samples, 9), generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(9) >= torch.arange(num_samples)[:, None] % 3).long()  # padded on the left
    return DataLoader(TensorDataset(words, mask), batch_size=batch_size)


@pytest.mark.slow
@pytest.mark.numbers
# the others run the same stages: test_schedules.py has them
@pytest.mark.parametrize("schedule", [None, "1F1B"])
def test_models_of_transformers_equal_one_device(schedule):
    def train(rank, module, **options):
        """The weights, the values at the end, and predictions."""
        seen, batches = Seen(), texts(14, 4)
        trainer = rank.trainer(callbacks=seen, max_epochs=2, **options)
        trainer.fit(module, batches, batches)
        values = {name: float(value) for name, value in trainer.callback_metrics.items()}
        return seen.weights, values, torch.cat(trainer.predict(module, batches))

    class OfLogits(Causal):
        """A step that makes its loss of logits, and layers that are computed again in backward."""

        def __init__(self, name, **options):
            super().__init__(name, **options)
            # Its name is another one since transformers 5.20.
            enable = getattr(self.model, "activation_checkpointing_enable", None)
            (enable or self.model.gradient_checkpointing_enable)()

        def training_step(self, batch, batch_idx):
            words, mask = batch
            logits = self.model(words, mask).logits
            return functional.cross_entropy(logits[:, :-1].flatten(0, 1), words[:, 1:].flatten())

    def train_whole(rank):
        models = [
            Causal("Granite", embedding_multiplier=3.0, logits_scaling=2.0),
            Causal("Llama", tie_word_embeddings=True),
            Causal("Qwen3", use_sliding_window=True, sliding_window=4, max_window_layers=1),
        ]
        return [
            train(rank, one, accumulate_grad_batches=2, gradient_clip_val=0.3) for one in models
        ]

    def train_scheduled(rank):
        """Norms and losses aren't in float32, where gradients of microbatches are rounded
        otherwise.
        """
        sizes = {"num_hidden_layers": 4, "ffn_dim": 32, "word_embed_proj_dim": 16}
        without_plan = OfLogits("OPT", tie_word_embeddings=True, dropout=0.0, **sizes)
        models = [OfLogits("GPTNeoX"), OfLogits("Phi"), without_plan]
        return [
            train(rank, one, accumulate_grad_batches=2, gradient_clip_val=0.3) for one in models
        ]

    pytest.importorskip("transformers", reason=_NEEDED)
    function = train_scheduled if schedule else train_whole
    runs, expected = on(pipeline=2, schedule=schedule).run(function), ALONE.run(function)[0]
    for run in runs:
        for (_, values, predicted), (_, of_one, alone) in zip(run, expected, strict=True):
            assert values == pytest.approx(of_one, abs=1e-12)
            torch.testing.assert_close(predicted, alone, rtol=0, atol=1e-12)
    for (weights, *_), (of_one, *_) in zip(runs[0], expected, strict=True):
        assert_equal_tensors(weights, of_one, 1e-12)
