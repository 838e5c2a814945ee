"""The least time within a budget of bytes, against trying every combination."""

from itertools import combinations_with_replacement, product

from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.plan import Group, Option, choose

_OPTIONS = st.lists(st.builds(Option, st.integers(0, 12), st.integers(0, 9).map(float)), min_size=1, max_size=4).map(
    tuple
)
_GROUPS = st.lists(
    st.builds(lambda count, options: Group(count=count, options=options), st.integers(1, 3), _OPTIONS), max_size=3
)


def _best_by_trying(groups, budget):
    """Every way to treat every layer."""
    ways = [list(combinations_with_replacement(group.options, group.count)) for group in groups]
    sums = [
        (
            sum(option.time_s for mix in mixes for option in mix),
            sum(option.size_bytes for mix in mixes for option in mix),
        )
        for mixes in product(*ways)
    ]
    return min((each for each in sums if each[1] <= budget), default=None)


@settings(max_examples=60, deadline=None)
@given(groups=_GROUPS, budget=st.integers(0, 60))
def test_the_choice_is_as_good_as_trying_every_combination(groups, budget):
    choice = choose(groups, budget_bytes=budget)
    best = _best_by_trying(groups, budget)
    if best is None:
        assert choice is None
        return
    assert choice.time_s == best[0]
    assert choice.size_bytes <= budget
    for group, counts in zip(groups, choice.counts, strict=True):
        assert sum(counts) == group.count
        assert len(counts) == len(group.options)


def test_nothing_is_chosen_where_nothing_fits():
    group = Group(count=2, options=(Option(10, 0.0), Option(5, 1.0)))
    assert choose([group], budget_bytes=9) is None
    assert choose([group], budget_bytes=15).counts == ((1, 1),)
