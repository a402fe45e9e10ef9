"""The search: greedy descents, and a complete search that proves or gives up."""

from __future__ import annotations

import pytest
from tests.placement.planning.clusters import cluster

from muster.placement.planning.bounds import proves_infeasible
from muster.placement.planning.encoding import Problem, encode
from muster.placement.planning.request import PACK, Model
from muster.placement.planning.search import Search, SearchVerdict, apply, descend, options, roomy, solve, splits, tight


def problem(gpus: tuple[int, ...], *models: Model) -> Problem:
    return encode(cluster(*gpus), models, total=True)


def sizes(*gpus: int) -> list[Model]:
    return [Model(f"m{number}", gpus_per_rank=count) for number, count in enumerate(gpus)]


BACKTRACKING = (9, 8), sizes(7, 6, 2, 2)  # 7 + 2 and 6 + 2: with 7 on the node of 8 it does not work out


def test_a_descent_leaves_out_what_does_not_fit_and_goes_on() -> None:
    found = descend(problem((4, 4), Model("a", replicas=3, gpus_per_rank=3), Model("b", replicas=2)), tight)
    assert found.verdict is SearchVerdict.NONE and found.missing == {0: 1}
    assert [placed.level for placed in found.placed] == [0, 0, 1, 1]


def test_tight_fills_the_fullest_node_and_roomy_the_emptiest() -> None:
    given = problem((8, 3), Model("m", replicas=2, gpus_per_rank=2), Model("other", gpus_per_rank=8))
    first = {prefer: descend(given, prefer).placed[0].nodes for prefer in (tight, roomy)}
    assert first == {tight: (1,), roomy: (0,)}


def test_the_search_finds_what_descents_do_not() -> None:
    given = problem(BACKTRACKING[0], *BACKTRACKING[1])
    assert descend(given, tight).missing and descend(given, roomy).missing
    found = solve(given)
    assert found.verdict is SearchVerdict.FOUND and not found.missing
    assert sorted(node for placed in found.placed for node in placed.nodes) == [0, 0, 1, 1]


def test_without_work_nothing_is_claimed_and_the_best_descent_is_shown() -> None:
    found = solve(problem(BACKTRACKING[0], *BACKTRACKING[1]), work=0)
    assert found.verdict is SearchVerdict.UNKNOWN
    assert sum(found.missing.values()) == 1 and len(found.placed) == 3


def test_a_complete_search_without_result_is_a_proof() -> None:
    given = problem((7, 7), *sizes(6, 5, 3))
    assert not proves_infeasible(given, 0, 1, given.start())  # only trying shows it
    assert Search(given, 1000).run().verdict is SearchVerdict.NONE
    assert solve(given).verdict is SearchVerdict.NONE


@pytest.mark.parametrize(
    ("bundles", "gpus", "expected"),
    [
        (2, (2,), [[2]]),
        (3, (2, 2), [[2, 1]]),
        (4, (2, 2), [[2, 2]]),
        (2, (1, 1, 1), [[1, 1]]),
        (2, (2, 2), [[2], [1, 1]]),
        (3, (1, 1), []),
    ],
)
def test_splits_among_equal_nodes_are_listed_once(bundles: int, gpus: tuple[int, ...], expected: list[int]) -> None:
    given = problem(gpus, Model("m", tp=bundles, cpus=0, strategy=PACK, bundles=bundles))
    state = given.start()
    piece = given.demands[0].pieces[0]
    classes = [(key, piece.room(key[1])) for key in state]
    found = [[each for _, each, count in split for _ in range(count)] for split in splits(bundles, classes, state)]
    assert found == expected


def test_a_placed_replica_takes_its_amounts_and_the_state_before_is_unchanged() -> None:
    given = problem((4, 4), Model("m", replicas=3, gpus_per_rank=2, cpus=0))
    state = given.start()
    piece, split = next(options(given, 0, state, tight))
    after, placed = apply(given, 0, state, piece, split)
    assert placed.nodes == (0,)
    assert {free: nodes for (_, free), nodes in after.items()} == {(2,): (1,), (1,): (0,)}
    assert {free: nodes for (_, free), nodes in state.items()} == {(2,): (0, 1)}
    piece, split = next(options(given, 0, after, tight))
    last, placed = apply(given, 0, after, piece, split)
    assert placed.nodes == (0,) and {free: nodes for (_, free), nodes in last.items()} == {(2,): (1,)}
