"""Each rank of a tensor group drops other places of its part of the values, and all the same ones
of whole values.
"""

import torch
from language import ALONE, WIDTH, Adapter, Stacked, on, refusal
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    """Drops between its layers, and what it returns."""

    def __init__(self, inside):
        super().__init__()
        self.up, self.down, self.inside = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), inside
        self.masks = []

    def drop(self, x, p):
        kept = functional.dropout(torch.ones_like(x), p, self.training)
        if torch.is_grad_enabled():
            self.masks.append(kept)
        return x * kept

    def forward(self, x):
        x = self.up(x)
        x = self.drop(x, self.inside) if self.inside else x
        return self.drop(self.down(x), 0.5)


class Net(nn.Module):
    """Two blocks, of which one is computed again in backward."""

    tensor_parallel_plan = {"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}

    def __init__(self, inside):
        super().__init__()
        self.blocks = nn.ModuleList(Block(inside) for _ in range(2))

    def forward(self, x):
        return checkpoint(self.blocks[1], self.blocks[0](x), use_reentrant=False)


def _train(rank, inside):
    """The masks of both blocks, and what torch draws next."""
    fabric = rank.fabric()
    torch.manual_seed(3)
    net = Net(inside)
    model = fabric.setup(net)
    torch.manual_seed(3)
    fabric.backward(model(torch.ones(4, WIDTH)).sum())
    fabric.teardown()
    return [block.masks for block in net.blocks], torch.rand(1)


def test_masks_of_parts_differ_and_masks_of_whole_values_are_alike():
    (ones, after), (others, other_after) = on(in_process=True, tensor=2).run(_train, 0.5)
    for one, other in zip(ones, others, strict=True):
        assert one[0].shape == (4, WIDTH // 2)
        assert not torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])
    assert not torch.equal(ones[0][0], ones[1][0])
    assert torch.equal(ones[1][0], ones[1][2]), "computed again, it drops the same"
    assert torch.equal(after, other_after)


def test_where_parts_are_not_dropped_all_is_drawn_as_on_one_device():
    expected, expected_after = ALONE.run(_train, 0.0)[0]
    for found, after in on(in_process=True, tensor=2).run(_train, 0.0):
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one[0], other[0])
        assert torch.equal(after, expected_after)


def test_adapters_drop_the_same_of_whole_inputs_and_other_places_of_parts():
    class _Adapted(Adapter):
        """A layer with an adapter that drops what it is given, as peft's."""

        def __init__(self):
            super().__init__(nn.Linear(WIDTH, WIDTH))
            self.masks = []

        def forward(self, x):
            mask = functional.dropout(torch.ones_like(x), 0.5, self.training)
            if torch.is_grad_enabled():
                self.masks.append(mask)
            return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x * mask))

    class _Adapting(nn.Module):
        """Three layers with adapters."""

        def __init__(self):
            super().__init__()
            self.left, self.right, self.down = _Adapted(), _Adapted(), _Adapted()

        def forward(self, x):
            return self.down(self.left(x) * self.right(x))

    def adapt(rank):
        fabric = rank.fabric()
        torch.manual_seed(3)
        block = _Adapting()
        net = nn.Sequential(block)
        net.tensor_parallel_plan = {"0.left": "colwise", "0.right": "colwise", "0.down": "rowwise"}
        fabric.backward(fabric.setup(net)(torch.ones(4, WIDTH)).sum())
        fabric.teardown()
        return [part.masks[0] for part in (block.left, block.right, block.down)]

    (left, right, down), others = on(tensor=2).run(adapt)
    assert torch.equal(left, others[0])
    assert torch.equal(right, others[1])
    assert down.shape == (4, WIDTH // 2)
    assert not torch.equal(down, others[2])


def test_whole_values_that_are_dropped_between_cut_layers_are_refused():
    class _DropsWhole(Block):
        """Drops its input behind the first cut layer."""

        def forward(self, x):
            up = self.up(x)
            return functional.dropout(x, 0.5, self.training) + self.down(up)

    def make():
        net = Net(0.0)
        net.blocks[0] = _DropsWhole(0.0)
        return net

    for error in on(in_process=True, tensor=2).run(
        refusal, make, lambda model, net: model(torch.ones(4, WIDTH))
    ):
        assert error.startswith(
            "_DropsWhole 'blocks.0' drops some of what all ranks of a tensor group have whole"
        )


def test_experts_that_drop_leave_all_ranks_with_the_same_numbers():
    class _Dropping(Stacked):
        """Experts that drop, of which one rank has more tokens than the other."""

        def forward(self, tokens, numbers, weights):
            return super().forward(functional.dropout(tokens, 0.5, self.training), numbers, weights)

    class _Mixture(nn.Module):
        tensor_parallel_plan = {"experts": "moe_tp_experts"}

        def __init__(self):
            super().__init__()
            self.experts = _Dropping()

        def forward(self, x):
            numbers = torch.zeros(len(x), 1, dtype=torch.long)
            numbers[0] = 3
            return self.experts(x, numbers, torch.ones(len(x), 1))

    def mix(rank):
        fabric = rank.fabric()
        model = fabric.setup(_Mixture())
        torch.manual_seed(3)
        fabric.backward(model(torch.ones(5, WIDTH)).sum())
        fabric.teardown()
        return torch.rand(1)

    one, other = on(in_process=True, tensor=2).run(mix)
    assert torch.equal(one, other)
