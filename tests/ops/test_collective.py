"""The collectives: on the host against NumPy, on the devices against the host; derivatives; text; errors."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jax.interpreters import mlir
from jaxlib.mlir import ir

import antegrad as ag
from antegrad import ops
from antegrad.capture import capture
from antegrad.ir.primitive import REGISTRY
from antegrad.ir.program import Program
from antegrad.ir.types import as_dtype
from antegrad.ops.call import optimization_barrier
from antegrad.ops.communication import (
    all_gather,
    all_reduce,
    all_to_all,
    axis_index,
    collective_permute,
    reduce_scatter,
)
from antegrad.ops.ranks import Collective, Ranks, as_groups
from antegrad.runtime.lockstep import lockstep, run_ranks
from tests.ops.collectives import (
    FORMS,
    GROUPS,
    PERMUTE,
    Form,
    captured,
    looped,
    looped_gradient,
    operands,
    rank_count,
    same,
    table,
)

ROOT = Path(__file__).parents[2]
PAIRS = ((0, 2), (1, 3))
DIFFERENTIATED = [(form, ranks) for form, ranks in table([3, PAIRS]) if form.name != "index"]
X = np.arange(1.0, 9.0).reshape(4, 2)


def label(value: Any) -> str:
    return value.name if isinstance(value, Form) else str(value).replace(" ", "")


def names(program: Program) -> list[str]:
    """The collectives of a program, those of sub-programs too."""
    return [each.primitive.name for each in program.all_equations() if each.primitive.communicates]


def on_ranks(function: Callable[..., Any], arguments: Sequence[Sequence[Any]]) -> list[tuple[np.ndarray, ...]]:
    """The outputs of each rank, from a program that is captured for the first."""
    return run_ranks(ag.capture(function, *arguments[0], name="smoke"), arguments)


# Values


@pytest.mark.parametrize(("form", "ranks"), table(GROUPS), ids=label)
def test_host_follows_the_formula(form: Form, ranks: Ranks) -> None:
    for dtype in form.dtypes:
        xs = operands(dtype, rank_count(ranks))
        found = [result for (result,) in on_ranks(form.of(ranks), [[x] for x in xs])]
        for rank, (one, expected) in enumerate(zip(found, form.expected(xs, ranks), strict=True)):
            signs = form.name not in ("max", "min")  # of two zeros NumPy may take either
            assert same(one, expected, signs), f"{dtype}, rank {rank}: found\n{one}\nexpected\n{expected}"


@pytest.mark.parametrize("shape", ["0,4,4", "4,0,4", "4,4,1"])
@pytest.mark.parametrize(("form", "ranks"), table([2, 4, PAIRS]), ids=label)
def test_empty_arrays_and_sizes_of_one(form: Form, ranks: Ranks, shape: str) -> None:
    xs = operands("f32", rank_count(ranks), shape)
    program = captured(form, 1, xs[0])  # whatever the axis, one rank can do it
    assert program.output_types[0].dtype in (xs[0].dtype, np.int32)
    try:
        expected = form.expected(xs, ranks)
    except ValueError:  # np.split finds that the ranks do not divide an axis
        with pytest.raises(ag.ShapeError, match="does not divide into"):
            captured(form, ranks, xs[0])
        return
    for one, truth in zip(on_ranks(form.of(ranks), [[x] for x in xs]), expected, strict=True):
        assert same(one[0], truth, False)


def test_one_rank_needs_no_collective() -> None:
    for form, ranks in table([1, ((0,), (1,))]):
        assert not names(captured(form, ranks, X.reshape(4, 2, 1))), form.name
    assert collective_permute(X, 1, [(0, 0)]) is X
    assert not collective_permute(X, 1, []).any()


def test_sums_of_16_bit_floats_are_rounded_once() -> None:
    for dtype in ("bf16", "f16"):
        large, small = (ops.full((2, 1), value, dtype) for value in (256, 0.75))
        parts = [[large], [small], [small], [small]]
        expected = np.float32(256 + 3 * 0.75).astype(large.dtype)
        assert {float(y[0, 0]) for (y,) in on_ranks(lambda x: all_reduce(x, 4), parts)} == {float(expected)}
        scattered = on_ranks(lambda x: reduce_scatter(x, 2), parts[:2])
        assert [float(y[0, 0]) for (y,) in scattered] == [float(np.float32(256.75).astype(large.dtype))] * 2


def test_integer_sums_wrap() -> None:
    xs = [[np.array([200, 3], np.uint8)]] * 2
    assert [y.tolist() for (y,) in on_ranks(lambda x: all_reduce(x, 2), xs)] == [[144, 6]] * 2


def test_results_share_no_memory() -> None:
    """Neither with what other ranks return, nor with what the caller passed."""
    xs = [X.copy(), X + 1]
    swapped = on_ranks(lambda x: (collective_permute(x, 2, [(0, 1), (1, 0)]), x), [[x] for x in xs])
    arrays = [*xs, *(result for own in swapped for result in own)]
    for i, one in enumerate(arrays):
        assert not any(np.shares_memory(one, other) for other in arrays[:i])


@pytest.fixture(scope="module")
def on_devices(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `tests.ops.collectives` found on four devices, in a process of its own: JAX has them from its start on."""
    target = tmp_path_factory.mktemp("collectives") / "found.json"
    command = [sys.executable, "-m", "tests.ops.collectives", str(target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return json.loads(target.read_text(encoding="utf-8"))


def test_devices_and_host_agree(on_devices: dict[str, Any]) -> None:
    assert on_devices["differences"] == []
    assert on_devices["compared"] > 400


def test_every_collective_is_in_the_table() -> None:
    used = {name for form in (*FORMS, PERMUTE) for name in names(captured(form, 2, X.reshape(2, 2, 2)))}
    assert used == {name for name, primitive in REGISTRY.items() if primitive.communicates}
    assert all(isinstance(REGISTRY[name], Collective) for name in used)


# Derivatives


def weighted(form: Form, ranks: Ranks) -> Callable[[Any, Any], Any]:
    """A scalar that depends on every element of a form's result, in another way on every rank."""
    return lambda x, w: ops.sum(w * ops.sin(form.function(x * x + x, ranks) + w))


def inputs(form: Form, ranks: Ranks, seed: int = 0) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """x and w of each rank."""
    rng, count = np.random.default_rng(seed), rank_count(ranks)
    size = len(as_groups(ranks)[0])
    xs = [rng.normal(size=(size, size, size)) for _ in range(count)]
    shape = captured(form, ranks, xs[0]).output_types[0].shape
    return xs, [rng.uniform(0.5, 1.5, shape) for _ in range(count)]


def loss_of(form: Form, ranks: Ranks, x: np.ndarray, w: np.ndarray) -> Program:
    return ag.capture(weighted(form, ranks), x, w)


def sum_of_losses(program: Program, xs: Sequence[Any], ws: Sequence[Any]) -> float:
    return float(sum(own[0] for own in run_ranks(program, list(zip(xs, ws, strict=True)))))


def assert_differences(program: Program, gradients: Sequence[np.ndarray], xs: Sequence[Any], ws: Sequence[Any]) -> None:
    """Each rank's gradient against central differences of the sum of all ranks' losses; at some of the elements."""
    step = 1e-5
    for rank, gradient in enumerate(gradients):
        for place in range(0, gradient.size, 5):
            values = []
            for side in (step, -step):
                moved = [x.copy() for x in xs]
                moved[rank].reshape(-1)[place] += side
                values.append(sum_of_losses(program, moved, ws))
            slope = (values[0] - values[1]) / (2 * step)
            assert gradient.reshape(-1)[place] == pytest.approx(slope, rel=1e-6, abs=1e-6), (rank, place)


@pytest.mark.parametrize(("form", "ranks"), DIFFERENTIATED, ids=label)
def test_gradient_is_that_of_the_sum_over_ranks(form: Form, ranks: Ranks) -> None:
    xs, ws = inputs(form, ranks)
    loss = loss_of(form, ranks, xs[0], ws[0])
    results = run_ranks(ag.reverse(loss, ["x"]), list(zip(xs, ws, strict=True)))
    assert_differences(loss, [gradient for _, gradient in results], xs, ws)


@pytest.mark.parametrize(("form", "ranks"), DIFFERENTIATED, ids=label)
def test_second_derivative(form: Form, ranks: Ranks) -> None:
    xs, ws = inputs(form, ranks)
    weights = np.random.default_rng(5).uniform(0.5, 1.5, xs[0].shape)
    of_gradient = ag.capture(lambda x, w: ops.sum(weights * ag.grad(weighted(form, ranks))(x, w)), xs[0], ws[0])
    results = run_ranks(ag.reverse(of_gradient, ["x"]), list(zip(xs, ws, strict=True)))
    assert_differences(of_gradient, [gradient for _, gradient in results], xs, ws)


@pytest.mark.parametrize(("form", "ranks"), DIFFERENTIATED, ids=label)
def test_forward_mode(form: Form, ranks: Ranks) -> None:
    """The tangent of each rank's result, for tangents of all ranks' operands at once."""
    xs, _ = inputs(form, ranks)
    ts, step = inputs(form, ranks, 1)[0], 1e-6

    def function(x: Any) -> Any:
        return ops.sin(form.function(x * x + x, ranks))

    found = on_ranks(lambda x, t: ag.jvp(function, (x,), (t,)), list(zip(xs, ts, strict=True)))
    above, below = (on_ranks(function, [[x + s * t] for x, t in zip(xs, ts, strict=True)]) for s in (step, -step))
    for (_, tangent), (high,), (low,) in zip(found, above, below, strict=True):
        np.testing.assert_allclose(tangent, (high - low) / (2 * step), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("op", ["max", "min"])
def test_ties_share_the_cotangent(op: str) -> None:
    sign = 1 if op == "max" else -1
    columns = np.array([[3, 1, np.nan, 5], [3, 2, 7, 5], [0, 2, 7, 5.0]])
    gradients = on_ranks(ag.grad(lambda x: ops.sum(all_reduce(x, 3, op))), [[sign * row] for row in columns])
    # Three losses each count the extremum once, and nothing is known where it is NaN.
    expected = [[1.5, 0, 0, 1], [1.5, 1.5, 0, 1], [0, 1.5, 0, 1]]
    np.testing.assert_array_equal([gradient for (gradient,) in gradients], expected)


def test_index_has_no_gradient() -> None:
    gradients = on_ranks(ag.grad(lambda x: ops.sum(x * axis_index(2).astype("f64"))), [[X], [X]])
    assert [float(gradient.sum()) for (gradient,) in gradients] == [0, X.size]


@pytest.mark.parametrize("ranks", [3, PAIRS], ids=label)
def test_gradient_through_control_flow(ranks: Ranks) -> None:
    rng = np.random.default_rng(2)
    xs = [rng.normal(size=(3, 4)) for _ in range(rank_count(ranks))]
    found = on_ranks(lambda x, w: looped_gradient(x, ranks), [(x, 0.0) for x in xs])
    loss = ag.capture(lambda x, w: looped_gradient(x, ranks)[0], xs[0], 0.0)
    assert_differences(loss, [gradient for _, gradient in found], xs, [0.0] * len(xs))


def test_forward_mode_through_a_while_loop() -> None:
    def function(x: Any) -> Any:
        return ag.while_loop(lambda s: all_reduce(ops.sum(s), 2) < 50, lambda s: s + all_reduce(s * s, 2) / 4, x)

    xs, ts, step = [X / 9, X / 8], [X / 7, 1 - X / 6], 1e-6
    found = on_ranks(lambda x, t: ag.jvp(function, (x,), (t,)), list(zip(xs, ts, strict=True)))
    above, below = (on_ranks(function, [[x + s * t] for x, t in zip(xs, ts, strict=True)]) for s in (step, -step))
    for (_, tangent), (high,), (low,) in zip(found, above, below, strict=True):
        np.testing.assert_allclose(tangent, (high - low) / (2 * step), rtol=1e-6)


# vmap


@pytest.mark.parametrize("axis", [0, 2])
@pytest.mark.parametrize(("form", "ranks"), table([2, PAIRS]), ids=label)
def test_vmap(form: Form, ranks: Ranks, axis: int) -> None:
    rng = np.random.default_rng(3)
    xs = [rng.normal(size=(3, 4, 4, 4)) for _ in range(rank_count(ranks))]
    examples = [form.expected([x[i] for x in xs], ranks) for i in range(3)]
    moved = [[np.ascontiguousarray(np.moveaxis(x, 0, axis))] for x in xs]
    function = ag.vmap(lambda x: form.function(x, ranks) + ops.sum(x) * 0, axis)
    for rank, (found,) in enumerate(on_ranks(function, moved)):
        np.testing.assert_array_equal(found, np.stack([example[rank] for example in examples]))


def test_vmap_of_a_gradient_has_one_collective_for_all_examples() -> None:
    program = ag.simplify(ag.capture(ag.vmap(ag.grad(lambda x: all_reduce(ops.sum(x * x), 2))), X))
    assert names(program) == ["all_reduce"]  # dy is 1 for every example: it need not be batched
    for (found,) in run_ranks(program, [[X], [X]]):
        np.testing.assert_array_equal(found, 4 * X)


# Text


@pytest.fixture(scope="module")
def programs() -> dict[str, Program]:
    """Forms with every kind of groups and element types, loops, and gradients of both."""
    found = {}
    for form, ranks in table([2, PAIRS, ((1, 0), (3, 2))]):
        for dtype in {"f64", "bf16", "u8"}.intersection(form.dtypes):
            x = operands(dtype, 1, "4,8,4")[0]
            found[f"{form.name} over {ranks} of {dtype}"] = captured(form, ranks, x)
    for form, ranks in DIFFERENTIATED:
        xs, ws = inputs(form, ranks)
        found[f"gradient of {form.name} over {ranks}"] = ag.reverse(loss_of(form, ranks, xs[0], ws[0]), ["x"])
    for ranks in (2, PAIRS):
        found[f"loops over {ranks}"] = ag.capture(lambda x, ranks=ranks: looped(x, ranks), X)
        found[f"gradient of loops over {ranks}"] = ag.capture(lambda x, ranks=ranks: looped_gradient(x, ranks), X)
    return found


def test_printed_programs_read_back(programs: dict[str, Program]) -> None:
    for name, program in programs.items():
        if "u8" in name or "((1, 0)" in name:
            continue  # they differ from the others in numbers alone, and reading takes long
        again = ag.from_python(program.python())
        assert "loops" in name or ag.diff(program, again) == "", name  # a call comes back as what it calls
        assert set(names(again)) == set(names(program)), name
        own, read = ([e.params for e in p.all_equations() if e.primitive.communicates] for p in (program, again))
        assert "loops" in name or own == read, name


@pytest.mark.parametrize("ranks", [2, PAIRS], ids=label)
def test_printed_loops_read_back(programs: dict[str, Program], ranks: Ranks) -> None:
    arguments = [[X / 8 - rank] for rank in range(rank_count(ranks))]
    for name in (f"loops over {ranks}", f"gradient of loops over {ranks}"):
        pair = (programs[name], ag.from_python(programs[name].python()))
        for own, read in zip(*(run_ranks(program, arguments) for program in pair), strict=True):
            assert all(same(a, b, True) for a, b in zip(own, read, strict=True)), name


def test_stablehlo_parses_and_numbers_its_collectives(programs: dict[str, Program]) -> None:
    for name, program in programs.items():
        text = program.stablehlo()
        with mlir.make_ir_context():
            assert ir.Module.parse(text).operation.verify(), name
        handles = re.findall(r"channel_handle<handle = (\d+), type = 1>", text)
        assert len(set(handles)) == len(handles), name
        assert len(handles) == sum(each != "axis_index" for each in names(program)), name


def test_programs_print_as_text_and_have_a_cost(programs: dict[str, Program]) -> None:
    for name, program in programs.items():
        assert all(f"{collective}(" in str(program) for collective in names(program)), name
        report = program.cost()
        assert str(report).startswith("cost of "), name
        assert report.total.bytes_written >= 4, name


def test_diff_shows_a_collective() -> None:
    before, after = (ag.capture(lambda x, op=op: all_reduce(x, 4, op), X, name="f") for op in ("sum", "max"))
    changed = [line for line in ag.diff(before, after).splitlines() if "all_reduce(" in line]
    assert len(changed) == 2
    assert changed[0].startswith("-    out = all_reduce(x, np.add, [range(4)])")
    assert changed[1].startswith("+    out = all_reduce(x, np.maximum, [range(4)])")


def test_empty_results_need_no_collective_of_xla() -> None:
    empty = np.zeros((0, 4), np.float32)
    for form in (*FORMS, PERMUTE):
        if form.name != "index" and "1" not in form.name.split(" ", 1)[-1]:
            text = captured(form, 4, empty.reshape(0, 4, 4)).stablehlo()
            assert "channel_handle" not in text, form.name


@pytest.mark.parametrize("form", [*FORMS, PERMUTE], ids=label)
def test_a_printed_module_alone_says_what_it_needs(form: Form) -> None:
    x = operands("f32", 1, "4,4,4")[0]
    namespace: dict[str, Any] = {"__name__": "printed"}
    exec(captured(form, 4, x).python(), namespace)
    with pytest.raises(RuntimeError, match=r"for the ranks \[range\(0, 4\)\]: run it by antegrad.parallel.lockstep"):
        namespace["smoke"](x)
    with pytest.raises(RuntimeError, match="run it by"):
        form.function(x, 4)


def test_operations_at_once_inside_of_lockstep() -> None:
    """Without a program: a function for each rank that calls the operations on arrays."""

    def work(rank: int) -> Callable[[], Any]:
        return lambda: all_reduce(X * float(axis_index(4)), 4) + all_gather(np.full((1, 1), rank + 1.0), 4).sum()

    for found in lockstep([work(rank) for rank in range(4)]):
        np.testing.assert_array_equal(found, X * 6 + 10)


# Passes


def test_collectives_of_constants_are_not_folded() -> None:
    def function(x: Any) -> Any:
        ones = ops.ones((2,), "f64")
        return all_reduce(ones, 4), all_gather(ones, 4), all_reduce(np.float64(2), 4), axis_index(4)

    program = ag.capture(function, X)
    assert sorted(names(ag.simplify(program))) == ["all_gather", "all_reduce", "all_reduce", "axis_index"]
    for rank, results in enumerate(run_ranks(ag.simplify(program), [[X]] * 4)):
        assert [result.tolist() for result in results] == [[4, 4], [1] * 8, 8, rank]


def test_equal_collectives_become_one() -> None:
    def function(x: Any) -> Any:
        twice = all_reduce(x, 4) + all_reduce(x, 4)
        return twice, all_reduce(x, 4, "max"), all_reduce(x, PAIRS), all_gather(x, 4), all_gather(x, 4, 1)

    program = ag.simplify(ag.capture(function, X))
    assert names(program) == ["all_reduce"] * 3 + ["all_gather"] * 2


def test_a_barrier_keeps_equal_collectives_apart() -> None:
    def function(x: Any) -> Any:
        first = all_reduce(x, 4)
        return first + all_reduce(optimization_barrier(x, first)[0], 4)

    assert names(ag.simplify(ag.capture(function, X))) == ["all_reduce"] * 2


def test_dead_collectives_are_removed() -> None:
    def function(x: Any) -> Any:
        unused = all_gather(all_reduce(x, 4), 4)
        return x + ag.scan(lambda c, row: (c + row, all_reduce(row, 4)), x[0], x)[0] + unused[:0].sum()

    assert names(ag.simplify(ag.capture(lambda x: (all_reduce(x, 4), x)[1] + 1, X))) == []
    assert "all_reduce" in names(ag.simplify(ag.capture(function, X)))


# Cost


@pytest.mark.parametrize(
    ("function", "dtype", "received", "flops"),
    [
        (lambda x: all_reduce(x, 4), "f32", 2 * 3 * 64 * 4 // 4, 64),
        (lambda x: all_reduce(x, 4), "bf16", 2 * 3 * 64 * 4 // 4, 64),  # it travels in f32
        (lambda x: all_reduce(x, 4, "max"), "bf16", 2 * 3 * 64 * 4 // 4, 64),
        (lambda x: all_reduce(x, PAIRS), "f64", 2 * 1 * 64 * 8 // 2, 64),
        (lambda x: all_reduce(x, 4), "i32", 2 * 3 * 64 * 4 // 4, 0),
        (lambda x: reduce_scatter(x, 4), "f32", 3 * 16 * 4, 64),
        (lambda x: reduce_scatter(x, PAIRS), "f16", 1 * 32 * 4, 64),
        (lambda x: all_gather(x, 4), "f16", 3 * 64 * 2, 0),
        (lambda x: all_gather(x, PAIRS), "f64", 1 * 64 * 8, 0),
        (lambda x: all_to_all(x, 4, 0, 1), "f32", 3 * 16 * 4, 0),
        (lambda x: all_to_all(x, PAIRS, 1, 0), "u8", 32, 0),
        (lambda x: collective_permute(x, 4, [(0, 1)]), "bf16", 64 * 2, 0),
        (lambda x: axis_index(4), "f32", 0, 0),
    ],
)
def test_bytes_received(function: Callable[[Any], Any], dtype: str, received: int, flops: int) -> None:
    program = ag.capture(function, ag.spec((8, 8), dtype))
    (equation,) = [each for each in program.equations if isinstance(each.primitive, Collective)]
    assert equation.primitive.received(equation) == received  # pyright: ignore[reportAttributeAccessIssue]
    assert equation.primitive.flops(equation) == flops


# Errors


@pytest.mark.parametrize(
    "ranks",
    [
        *(0, -1, True, 1.5, 4.0, None, "4", "01", (0, 1), (), ((),), ((0, 2),), ((1, 2),), ((0, 0),), ((0, 1), (2,))),
        *(((0, 1), (1, 2)), ((0.0, 1.0),), ((0, "a"),), ((False, True),), ((0, None),), ("01",)),
    ],
    ids=repr,
)
def test_wrong_ranks(ranks: Any) -> None:
    for form in FORMS:
        with pytest.raises(ag.SettingError, match="ranks must be a number of at least 1, or groups of one size"):
            form.function(X, ranks)
    with pytest.raises(ag.SettingError, match="ranks must be"):
        collective_permute(X, ranks, [])


def test_numpy_numbers_and_other_sequences_name_ranks() -> None:
    groups = as_groups([[np.int64(0), 2], range(1, 4, 2)])
    assert groups == PAIRS
    assert {type(rank) for group in groups for rank in group} == {int}
    assert as_groups(np.int32(3)) == ((0, 1, 2),)


@pytest.mark.parametrize(
    "function",
    [reduce_scatter, all_gather, lambda x, r, a: all_to_all(x, r, a, 0), lambda x, r, a: all_to_all(x, r, 0, a)],
)
@pytest.mark.parametrize("axis", [2, -3])
def test_wrong_axis(function: Callable[..., Any], axis: int) -> None:
    with pytest.raises(ag.ShapeError, match=f"{axis}"):
        function(X, 2, axis)
    with pytest.raises(ag.ShapeError):
        function(np.float64(1), 2, 0)


def test_an_axis_must_divide() -> None:
    wanted = r"axis 0 of f64\[4,2\] does not divide into 3 parts of one size: pad it to a multiple"
    with pytest.raises(ag.ShapeError, match=f"reduce_scatter: {wanted}"):
        reduce_scatter(X, 3)
    with pytest.raises(ag.ShapeError, match=f"all_to_all: {wanted}"):
        all_to_all(X, 3, 0, 1)


def test_sums_of_bool_are_refused() -> None:
    flags = X > 2
    for op in ("sum", "max", "min"):
        with pytest.raises(ag.DTypeError, match=r"all_reduce is for numbers, found bool\[4,2\]: use .astype"):
            all_reduce(flags, 2, op)
    with pytest.raises(ag.DTypeError, match="reduce_scatter is for numbers"):
        reduce_scatter(flags, 2)
    with pytest.raises(ag.DTypeError, match="a mean needs floats, found int32"):
        all_reduce(X.astype(np.int32), 2, "mean")


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_a_mean_stays_in_the_range_of_its_type(dtype: str) -> None:
    """The sum of four such f16 numbers does not."""
    x = np.full((3,), 40000, as_dtype(dtype))
    program = capture(lambda x: all_reduce(x, 4, "mean"), x)
    for (found,) in run_ranks(program, [[x]] * 4):
        np.testing.assert_array_equal(found, x)


def test_wrong_op() -> None:
    with pytest.raises(ag.SettingError, match="op must be sum, mean, max or min, found 'prod'"):
        all_reduce(X, 2, "prod")


@pytest.mark.parametrize(
    "pairs", [[(0, 1), (0, 2)], [(0, 1), (2, 1)], [(0, 3)], [(-1, 0)], [(0,)], [(0, 1, 2)], [0, 1], 5, [(0.5, 1)]]
)
def test_wrong_pairs(pairs: Any) -> None:
    with pytest.raises(ag.SettingError, match=r"collective_permute: .* found"):
        collective_permute(X, 3, pairs)


def test_a_permutation_is_over_a_number_of_ranks() -> None:
    for ranks in (PAIRS, ((1, 0),)):
        with pytest.raises(ag.SettingError, match="collective_permute: ranks must be a number"):
            collective_permute(X, ranks, [])  # pyright: ignore[reportArgumentType]
