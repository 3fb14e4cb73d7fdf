"""The errors of ranks that have built different modules. Real ranks: the tests of core-ddp and
core-fsdp.
"""

from core.strategies.refusals import describe_difference


def test_the_first_difference_names_the_tensor_and_who_has_what():
    plain = [("weight", "(4, 6) float32"), ("bias", "(4,) float32")]
    frozen = [("weight", "(4, 6) float32, frozen"), ("bias", "(4,) float32")]
    assert describe_difference([plain, plain, frozen, plain[:1], plain]).endswith(
        "0 of them is:\n  'weight', (4, 6) float32 on ranks 0-1, 3-4\n  'weight', (4, 6) float32, "
        "frozen on rank 2"
    )
    assert describe_difference([plain, plain[:1]]).endswith(
        "  'bias', (4,) float32 on rank 0\n  'no tensor', missing on rank 1"
    )
    assert describe_difference([plain, plain[::-1]]).endswith(
        "  'weight', (4, 6) float32 on rank 0\n  'bias', (4,) float32 on rank 1"
    )
