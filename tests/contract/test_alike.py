"""The errors of ranks that have built different modules. Real ranks: the tests of core-ddp and
core-fsdp.
"""

from core.strategies.refusals import describe_difference


def test_a_difference_names_the_tensor_and_who_has_what():
    plain = [("weight", "(4, 6) float32"), ("bias", "(4,) float32")]
    frozen = [("weight", "(4, 6) float32, frozen"), ("bias", "(4,) float32")]
    text = describe_difference([plain, plain, frozen, plain[:1], plain])
    assert "'weight': (4, 6) float32 on ranks 0-1, 3-4; (4, 6) float32, frozen on rank 2\n" in text
    assert text.endswith("'bias': (4,) float32 on ranks 0-2, 4; missing on rank 3")


def test_another_order_is_a_difference():
    rows = [("a", "(4,) float32"), ("b", "(4,) float32")]
    assert describe_difference([rows, rows[::-1]]).endswith(
        "  tensor 0 is 'a' on rank 0\n  tensor 0 is 'b' on rank 1"
    )


def test_many_differences_are_counted():
    rows = [(f"{number}", "(4,) float32") for number in range(20)]
    assert describe_difference([rows, []]).endswith("  and 12 more")
