"""The sharding passes: what they put into a program, and that it computes the same."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest

import antegrad as ag
from antegrad import losses, nn, ops, optim, parallel, random, spec, tree
from antegrad.capture import capture
from antegrad.ir.program import Program
from antegrad.ir.types import TensorType, type_of
from antegrad.parallel.exchange import Exchange, exchanged
from antegrad.parallel.layout import Layout, buckets
from antegrad.parallel.partition import partition
from antegrad.parallel.programs import RankPrograms
from antegrad.train.objective import Objective

SHAPES = [(), (1,), (0,), (3,), (7, 2), (4, 4), (2, 3, 5)]


def collectives(program: Program) -> Counter[str]:
    return Counter(eq.primitive.name for eq in program.all_equations() if eq.primitive.communicates)


def without_index(program: Program) -> dict[str, int]:
    return {name: count for name, count in collectives(program).items() if name != "axis_index"}


# layout


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_shape_is_divided_and_joined(shape: tuple[int, ...], ranks: int) -> None:
    layout, x = Layout(ranks), np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    spread = layout.spread(x)
    assert spread.shape == (layout.chunk(type_of(x)) * ranks,)
    assert not spread[x.size :].any()
    np.testing.assert_array_equal(layout.joined(spread, type_of(x)), x)
    program = capture(lambda x: (layout.own(x), layout.whole(layout.rows(x), type_of(x))), x)
    found = parallel.run_ranks(program, [[x]] * ranks)
    np.testing.assert_array_equal(np.concatenate([own for own, _ in found]), spread)
    assert all(np.array_equal(whole, x) for _, whole in found)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_buckets_travel_as_if_alone(ranks: int) -> None:
    layout, rng = Layout(ranks), np.random.default_rng(0)
    arguments = [[rng.standard_normal(shape).astype(np.float32) for shape in SHAPES] for _ in range(ranks)]
    types = [TensorType(shape, np.dtype(np.float32)) for shape in SHAPES]

    def travel(*xs: Any) -> Any:
        shards = layout.reduce_scatter(xs)
        return layout.all_reduce(xs), shards, layout.all_gather(shards, types)

    program = capture(travel, *types)
    totals = [sum(rows[i] for rows in arguments[1:]) + arguments[0][i] for i in range(len(SHAPES))]
    for outputs in parallel.run_ranks(program, arguments):
        summed, _, gathered = tree.unflatten(program.structure, outputs)
        for total, one, other in zip(totals, summed, gathered, strict=True):
            np.testing.assert_allclose(one, total, rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(one, other)
    assert without_index(program) == ({} if ranks == 1 else {"all_reduce": 1, "reduce_scatter": 1, "all_gather": 1})


def test_buckets_are_full_before_the_next_begins() -> None:
    f32, f64 = np.dtype(np.float32), np.dtype(np.float64)
    types = [TensorType((n,), f32) for n in (2, 1, 9, 1, 1)] + [TensorType((1,), f64), TensorType((1,), f32)]
    assert buckets(types, 12) == [[0, 1], [2], [3, 4, 6], [5]]
    assert buckets([], 1) == []


# updates


def test_case_clip_sharded() -> None:
    """Two ranks with the gradients [3] and [4]: the norm is that of both, 5. By its own norm each would keep 1."""
    clip = optim.clip_by_global_norm(1.0)

    def update(gradients: Any, state: Any) -> Any:
        return clip.update(gradients, state, gradients)[0]

    gradient, state = {"w": spec((2,)), "b": spec((3,))}, clip.init({})
    program = capture(update, gradient, state)
    sharded = partition(program, Layout(2), [True, True, False], [True, True], 100)
    assert without_index(sharded) == {"all_reduce": 1}
    zero, none = np.zeros(2, np.float32), np.int32(0)
    given = [[zero, np.array([value], np.float32), none] for value in (3, 4)]
    one, other = parallel.run_ranks(sharded, [[row[0], row[1], row[2]] for row in given])
    whole = program.run(np.zeros(3, np.float32), np.array([3, 4], np.float32), none, device="host")
    np.testing.assert_array_equal(np.concatenate([one[1], other[1]]), whole["w"])
    np.testing.assert_allclose(whole["w"], [0.6, 0.8], rtol=1e-7)


def test_replicated_gradients_count_once() -> None:
    """The same update with one gradient whole on every rank."""
    clip = optim.clip_by_global_norm(1.0)
    program = capture(lambda g, s: clip.update(g, s, g)[0], {"a": spec((1,)), "b": spec((2,))}, clip.init({}))
    sharded = partition(program, Layout(2), [False, True, False], [False, True], 100)
    rows = [[np.array([12.0], np.float32), np.array([value], np.float32), np.int32(0)] for value in (3, 4)]
    for a, _ in parallel.run_ranks(sharded, rows):
        assert a == pytest.approx(12 / 13)


@pytest.mark.parametrize("function", ["sum", "max", "min", "mean"])
def test_filling_does_not_count(function: str) -> None:
    """The exponential of the zeros that fill up would be 1."""
    x = np.random.default_rng(0).standard_normal(5).astype(np.float32) - 3
    sign = -1 if function == "min" else 1
    program = capture(lambda x: getattr(ops, function)(sign * ops.exp(x)), x)
    sharded = partition(program, Layout(4), [True], [False], 100)
    rows = [[part] for part in np.split(Layout(4).spread(x), 4)]
    for (found,) in parallel.run_ranks(sharded, rows):
        np.testing.assert_allclose(found, program.run(x, device="host"), rtol=1e-6)


def test_what_cannot_be_done_on_shards_is_done_on_the_whole() -> None:
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    program = capture(lambda x: (ops.softmax(x) * x, ops.cumsum(x, 1), x.T + 1, ops.sort(ops.reshape(x, (15,)))), x)
    sharded = partition(program, Layout(4), [True], [True, False, True, False], 1000)
    parts = [[part] for part in np.split(Layout(4).spread(x), 4)]
    found = parallel.run_ranks(sharded, parts)
    expected = program.run(x, device="host")
    layout = Layout(4)
    for i, flag in enumerate([True, False, True, False]):
        whole = layout.joined(np.concatenate([row[i] for row in found]), type_of(expected[i])) if flag else found[0][i]
        np.testing.assert_allclose(whole, expected[i], rtol=1e-6)
    assert without_index(sharded) == {"all_gather": 1}


# gradients


def mlp(width: int = 8) -> nn.Module:
    keys = random.split(random.key(0), 3)
    first, second = nn.Dense(6, width, key=keys[0]), nn.Dense(width, width, key=keys[1])
    return nn.Sequential(first, ops.tanh, second, ops.tanh, nn.Dense(width, 2, key=keys[2]))


def programs(level: int, ranks: int = 4, bucket_bytes: int = 2**20, **settings: Any) -> RankPrograms:
    mesh = parallel.mesh(ranks, device="host")
    name = f"zero{level}" if level else "ddp"
    where = parallel.strategy(name, mesh, bucket_bytes=bucket_bytes)
    objective = Objective(mlp(), losses.mean_squared_error)
    optimizer = settings.pop("optimizer", optim.adam(1e-3))
    return RankPrograms(where, objective, optimizer, spec((4, 6)), spec((4, 2)), **settings)


COUNTS = {
    0: {"all_reduce": 2},
    1: {"all_reduce": 2, "all_gather": 1},
    2: {"all_reduce": 1, "reduce_scatter": 1, "all_gather": 1},
    3: {"all_reduce": 1, "reduce_scatter": 1, "all_gather": 2},
}
"""Losses and counts are always summed; then come the gradients, and the parameters, twice with ZeRO-3."""


@pytest.mark.parametrize("level", COUNTS)
def test_what_travels_in_a_step(level: int) -> None:
    assert without_index(programs(level).step) == COUNTS[level]


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("level", COUNTS)
def test_gradients_of_frozen_parameters_do_not_travel(level: int, accumulate: int) -> None:
    """They are not computed either: the pass backward ends at the lowest layer that is trained."""

    def received(optimizer: optim.Optimizer) -> tuple[int, int]:
        step = programs(level, optimizer=optimizer, accumulate=accumulate).step
        kinds = [eq for eq in step.all_equations() if eq.primitive.name in ("all_reduce", "reduce_scatter")]
        products = [eq for eq in step.all_equations() if eq.primitive.name == "dot_general"]
        return sum(eq.input_types[0].size for eq in kinds), len(products)

    whole, products = received(optim.adam(1e-3))
    last, fewer = received(optim.freeze(optim.adam(1e-3), "[02].*"))
    others = 2 + (4 if level >= 2 else 2)  # the loss and the count, and a bias, which is filled up where it is divided
    assert (whole, products) == (6 * 8 + 8 + 8 * 8 + 8 + 8 * 2 + others, 3 + 5)
    assert (last, fewer) == (8 * 2 + others, 3 + 1)


def test_buckets_travel_while_the_backward_pass_goes_on() -> None:
    """Each bucket of gradients stands before the backward pass of the layers below."""
    step = programs(0, bucket_bytes=300).step
    backward = [eq for eq in step.equations if eq.source.part == "backward"]
    kinds = ["travel" if eq.primitive.communicates else eq.primitive.name for eq in backward]
    places = [place for place, kind in enumerate(kinds) if kind == "travel"]
    assert len(places) >= 3
    assert "dot_general" in kinds[places[0] : places[1]]
    assert "dot_general" in kinds[places[1] : places[-1]]


def test_parameters_are_gathered_before_their_use_and_again_for_the_backward_pass() -> None:
    """Between the two nobody holds them: the second gather does not read the first, and has an operand of its own."""
    step = programs(3, bucket_bytes=300).step
    gathers = [(place, eq) for place, eq in enumerate(step.equations) if eq.primitive.name == "all_gather"]
    parts = [eq.source.part for _, eq in gathers]
    assert parts == sorted(parts, key=["forward", "backward"].index)
    # The input needs no gradient, so its layer is not read again.
    assert Counter(parts) == {"forward": 3, "backward": 2}
    forward_places = [place for place, eq in gathers if eq.source.part == "forward"]
    between = [eq.primitive.name for eq in step.equations[forward_places[0] : forward_places[1]]]
    assert "dot_general" in between
    operands = [eq.inputs[0] for _, eq in gathers]
    assert len(set(operands)) == len(operands)
    # Each tensor alone, so that both passes gather the same buckets, which nothing may merge.
    assert without_index(programs(3, bucket_bytes=1).step)["all_gather"] == 6 + 2


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_accumulated_parts_travel_once_where_gradients_may_be_whole(level: int) -> None:
    step = programs(level, accumulate=2).step
    inside = sum((collectives(sub) for eq in step.equations for sub in eq.programs), Counter())
    travels = {name for name in inside if name != "axis_index"}
    expected = [set(), set(), {"all_reduce", "reduce_scatter"}, {"all_reduce", "reduce_scatter", "all_gather"}]
    assert travels == expected[level]


def test_a_norm_takes_one_collective_of_a_scalar() -> None:
    optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.adam(1e-3))
    for level in (2, 3):
        plain, clipped = programs(level).step, programs(level, optimizer=optimizer).step
        assert collectives(clipped)["all_reduce"] == collectives(plain)["all_reduce"] + 1
    assert collectives(programs(1, optimizer=optimizer).step)["all_reduce"] == COUNTS[1]["all_reduce"]


def test_one_rank_sends_nothing() -> None:
    for level in COUNTS:
        assert not collectives(programs(level, ranks=1).step)


def test_an_exchange_of_nothing_is_the_program() -> None:
    program = programs(0).gradient
    assert ag.diff(exchanged(program, Exchange(Layout(4), 100)), program) == ag.diff(program, program)


def test_the_step_prints_and_its_ranks_can_be_stepped_through() -> None:
    """A tracer sees each line of one rank, as `pdb` does, while the others run along."""
    made = programs(3)
    state = tree.leaves(tree.map(lambda type: np.zeros(type.shape, type.dtype), made.state_types))
    batch = [np.ones((4, 6), np.float32), np.ones((4, 2), np.float32), np.zeros(2, np.uint32)]
    lines: list[str] = []

    def trace(frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code.co_name == made.step.name and event == "line":
            lines.append(frame.f_lineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        found = parallel.run_ranks(made.step, [[*state, *batch]] * 4, here=2)
    finally:
        sys.settrace(before)
    assert len(lines) > 40
    assert len({row[0].tobytes() for row in found}) == 1
    text = made.step.python()
    assert "all_gather(" in text
    assert "reduce_scatter(" in text
    again = parallel.run_ranks(ag.from_python(text), [[*state, *batch]] * 4)
    assert [[x.tobytes() for x in row] for row in again] == [[x.tobytes() for x in row] for row in found]
