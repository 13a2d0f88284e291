"""Each commit runs other cases of a test, and at least one of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from types import SimpleNamespace

import pytest

from tests.drawing import drawn, keep_drawn

CASES = [f"test_a.py::test_{name}[{case}]" for name in "ab" for case in range(8)]
WHOLE = ["test_a.py::test_c", "test_b.py::test_a"]


def counts(names: Collection[str]) -> Counter[str]:
    return Counter(name.partition("[")[0] for name in names)


@pytest.mark.parametrize(
    ("one_in", "at_least", "count"), [(1, 0, 8), (2, 0, 4), (4, 3, 3), (4, 20, 8), (8, 0, 1)]
)
def test_as_many_cases_of_each_test(one_in, at_least, count):
    found = drawn(CASES + WHOLE, one_in, at_least)
    assert found >= set(WHOLE)
    assert counts(found) == {
        **counts(WHOLE),
        "test_a.py::test_a": count,
        "test_a.py::test_b": count,
    }


def test_commits_draw_other_cases_until_all_have_run():
    draws = [drawn(CASES, 4, 0, seed) for seed in range(60)]
    assert draws == [drawn(reversed(CASES), 4, 0, seed) for seed in range(60)]
    assert len(set(map(frozenset, draws))) > 20
    assert set.union(*draws) == set(CASES)
    assert any(
        {name.split("_b")[-1] for name in draw} != {n.split("_a")[-1] for n in draw}
        for draw in draws
    )


def test_what_does_not_divide_is_left_to_chance():
    only = CASES[:1]
    draws = [len(drawn(only, 3, 0, seed)) for seed in range(300)]
    assert 70 < sum(draws) < 130
    assert {len(drawn(CASES[:4], 3, 0, seed)) for seed in range(60)} == {1, 2}
    assert all(drawn(only, 3, 1, seed) == {*only} for seed in range(60))


def run(one_in: int, at_least: int, skipped: Collection[str] = ()) -> tuple[list[str], list[str]]:
    """Return the tests that are kept, in order, and those that are deselected."""
    items = [
        SimpleNamespace(nodeid=name, get_closest_marker={"skip": name in skipped}.get)
        for name in CASES + WHOLE
    ]
    deselected: list[SimpleNamespace] = []
    config = SimpleNamespace(
        getoption={"--one-in": one_in, "--at-least": at_least}.__getitem__,
        hook=SimpleNamespace(pytest_deselected=lambda items: deselected.extend(items)),
    )
    keep_drawn(config, items)
    return [item.nodeid for item in items], [item.nodeid for item in deselected]


def test_the_others_are_deselected():
    kept, deselected = run(4, 1)
    assert kept == [name for name in CASES + WHOLE if name in drawn(CASES + WHOLE, 4, 1)]
    assert sorted(kept + deselected) == sorted(CASES + WHOLE)
    assert run(1, 0) == (CASES + WHOLE, [])


def test_what_is_skipped_takes_no_place():
    """Otherwise, a test could run none of its cases."""
    kept, _ = run(8, 1, skipped=CASES[:7])
    assert set(kept) == {*CASES[:8], *drawn(CASES[8:], 8, 1), *WHOLE}


@pytest.mark.parametrize("numbers", [(0, 4), (2, -1)])
def test_a_wrong_number_is_an_error(numbers):
    with pytest.raises(pytest.UsageError, match=r"^--one-in=.* is too small$"):
        run(*numbers)
