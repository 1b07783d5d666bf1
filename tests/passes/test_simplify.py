"""Simplification: the bits it keeps, the bounds it states, what it leaves out, and that a second pass finds nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import antegrad as ag
from antegrad import ops
from antegrad.ir.program import Program
from antegrad.passes import rules
from tests.passes.programs import arrays, programs
from tests.support import assert_same_bits, run

F32, F64, F16, BF16 = (np.dtype(ag.spec((), name).dtype) for name in ("f32", "f64", "f16", "bf16"))
BOUNDED = {rules.scale_by_powers_of_two, rules.harmless_factor, rules.reduce_nothing, rules.sum_of_broadcast}
"""The rules that change bits within a bound; each has a test of its own below."""


def names(program: Program) -> list[str]:
    return [equation.primitive.name for equation in program.equations]


def simplified(function: Callable[..., Any], *types: ag.TensorType) -> list[str]:
    """The primitives that are left of `function`."""
    return names(ag.simplify(ag.capture(function, *types)))


@pytest.fixture
def exact_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the rules that keep every bit."""
    for name, found in rules.RULES.items():
        monkeypatch.setitem(rules.RULES, name, [rule for rule in found if rule not in BOUNDED])


@settings(max_examples=150)
@given(programs())
def test_host_bits_stay(program: Program) -> None:
    with pytest.MonkeyPatch.context() as patch:
        exact_rules.__wrapped__(patch)
        after = ag.simplify(program)
    given_arrays = arrays(program)
    before, found = run(program, given_arrays, "host"), run(after, given_arrays, "host")
    for name, expected, actual in zip(program.output_names, before, found, strict=True):
        assert_same_bits(actual, expected, name)


@settings(max_examples=100)
@given(programs())
def test_a_second_pass_finds_nothing(program: Program) -> None:
    once = ag.simplify(program)
    assert len(ag.simplify(once).equations) == len(once.equations), f"{once}\n{ag.simplify(once)}"
    assert redundancies(once) == []


@settings(max_examples=50)
@given(programs(["f64"], smooth=True))
def test_order_of_additions_is_all_that_changes(program: Program) -> None:
    given_arrays = arrays(program)
    (before,), (after,) = run(program, given_arrays, "host"), run(ag.simplify(program), given_arrays, "host")
    assume(np.isfinite(before))
    np.testing.assert_allclose(after, before, rtol=1e-9, atol=1e-12)


@settings(max_examples=60)
@given(programs(["f64"], smooth=True, most=20))
def test_gradient_of_a_random_program(program: Program) -> None:
    """Against central differences along one direction; where two step sizes disagree, differences prove nothing."""
    xs = arrays(program)
    rng = np.random.default_rng(1)
    direction = [rng.normal(size=x.shape) for x in xs]

    def loss(step: float) -> float:
        return float(run(program, [x + step * d for x, d in zip(xs, direction, strict=True)], "host")[0])

    slopes = [(loss(h) - loss(-h)) / (2 * h) for h in (1e-4, 2e-4)]
    assume(abs(slopes[0] - slopes[1]) < 1e-6 * max(1, abs(slopes[0])))
    gradients = run(ag.reverse(program), xs, "host")[1:]
    slope = sum(float(np.sum(g * d)) for g, d in zip(gradients, direction, strict=True))
    assert slope == pytest.approx(slopes[0], rel=1e-6, abs=1e-6)


V, M, S = ag.spec((3,)), ag.spec((3, 4)), ag.spec(())


@pytest.mark.parametrize(
    ("function", "types", "left"),
    [
        (lambda x: x * 1, [V], []),
        (lambda x: 1 * x, [V], []),
        (lambda x: x * -1, [V], ["negative"]),
        (lambda x: x * ops.ones_like(x), [M], []),
        (lambda x: x * np.ones(3, np.float32), [V], []),
        (lambda x: x - np.zeros((3, 1), np.float32), [M], []),
        (lambda x: ops.negative(-x), [V], []),
        (lambda x: x - 0, [V], []),
        (lambda x: x + -0.0, [V], []),
        (lambda x: x + 0, [ag.spec((3,), "i32")], []),
        (lambda x: x << 0, [ag.spec((3,), "i32")], []),
        (lambda x: x / 1, [V], []),
        (lambda x: x**1.0, [V], []),
        (lambda x: x.T.T, [M], []),
        (lambda x: x.T.reshape((2, 6)).T, [ag.spec((4, 3))], ["transpose", "transpose", "reshape"]),
        (lambda x: x.reshape((12,)).reshape((3, 4)), [M], []),
        (lambda x: x.reshape((12,)).reshape((4, 3)), [M], ["reshape"]),
        (lambda x: ops.broadcast_to(ops.broadcast_to(x, (4, 3)), (2, 4, 3)), [V], ["broadcast_in_dim"]),
        (lambda x: ops.broadcast_to(x[:, None], (3, 4)), [V], ["broadcast_in_dim"]),
        (lambda x: ops.broadcast_to(x.reshape((3,))[:, None], (3, 4)), [ag.spec((3, 1))], ["broadcast_in_dim"]),
        (lambda x: ops.broadcast_to(x.reshape((3,)), (4, 3)), [ag.spec((1, 3))], ["broadcast_in_dim"]),
        (lambda x: ops.broadcast_to(x.reshape((3,)), (4, 3)), [ag.spec((3, 1))], ["broadcast_in_dim", "reshape"]),
        (lambda x: x.T.sum(axis=0), [M], ["reduce_sum"]),
        (lambda x: x.T.sum(axis=1), [M], ["reduce_sum"]),
        (lambda x: x.sum(axis=0), [ag.spec((1, 3))], ["reshape"]),
        (lambda x, y: x.T @ y, [M, M], ["dot_general"]),
        (lambda x, y: x @ y.T, [M, M], ["dot_general"]),
        (lambda x: x[:], [M], []),
        (lambda x: ops.pad(x, 0), [M], []),
        (lambda x: x.astype("f64").astype("f32"), [V], []),
        (lambda x: ops.where(x > 0, x, x), [V], []),
        (lambda x: ops.where(ops.full((3,), True, "bool"), x, 0), [V], []),
        (lambda x: ops.concatenate([x, x[:0]]), [V], []),
        (lambda x: x * 2 * 3, [V], ["constant", "broadcast_in_dim", "multiply"]),
        (lambda x: ops.exp(x) + ops.exp(x), [V], ["exp", "add"]),
        (lambda x: (x, ops.exp(x))[0], [V], []),
        (lambda: ops.exp(ops.full((), 0.0)) + 1, [], ["constant"]),
    ],
)
def test_left_over(function: Callable[..., Any], types: list[ag.TensorType], left: list[str]) -> None:
    assert sorted(simplified(function, *types)) == sorted(left)


@pytest.mark.parametrize(
    ("function", "types", "kept"),
    [
        (lambda x: x + 0.0, [V], "add"),  # -0.0 + 0.0 is 0.0
        (lambda x: x - -0.0, [V], "subtract"),
        (lambda x: x * 0, [V], "multiply"),  # NaN * 0 is NaN
        (lambda x: x - x, [V], "subtract"),
        (lambda x: x / x, [V], "divide"),
        (lambda x: x.astype("f16").astype("f32"), [V], "convert"),  # rounds
        (lambda x: x.astype("f32").astype("i32"), [ag.spec((3,), "i32")], "convert"),
        (lambda x: x * 0.1 * 0.3, [V], "multiply"),  # two roundings are not one
        (lambda x, w: x.transpose(0, 2, 1) @ w, [ag.spec((2, 3, 4)), ag.spec((3, 5))], "transpose"),  # another notation
        (lambda x, y: (x.T @ y).T, [M, M], "transpose"),
        (lambda x: ops.stop_gradient(x) * 1, [V], "stop_gradient"),  # a later derivative needs it
    ],
)
def test_kept(function: Callable[..., Any], types: list[ag.TensorType], kept: str) -> None:
    assert kept in simplified(function, *types)


def test_names_of_the_user_stay() -> None:
    def function(x: Any) -> Any:
        hidden = ops.tanh(x * 1)
        doubled = hidden * 2
        return doubled + doubled

    assert "hidden = np.tanh(x)" in ag.simplify(ag.capture(function, V)).python()


def test_the_program_that_goes_in_stays_as_it_is() -> None:
    def function(x: Any, w: Any) -> Any:
        h = ops.relu((x @ w) * 1)
        final, ys = ag.scan(lambda c, row: (c * 1 + row.sum(), c), h.sum() * 0.5, h)
        return ops.mean(h * h) + final + ys.sum()

    program = ag.capture(function, M, ag.spec((4, 5)))
    before = str(program), program.python(), program.stablehlo()
    ag.simplify(program)
    ag.reverse(program)
    assert (str(program), program.python(), program.stablehlo()) == before


def test_sub_programs_are_simplified() -> None:
    def step(c: Any, x: Any) -> Any:
        return c * 1 + x, ops.exp(x) + ops.exp(x)

    program = ag.simplify(ag.capture(lambda xs: ag.scan(step, 0.0, xs), V))
    (body,) = next(eq for eq in program.equations if eq.programs).programs
    assert sorted(names(body)) == ["add", "add", "exp"]


def test_equal_params_of_another_type_are_not_merged() -> None:
    """A repeated value has the same primitive, operands and params, down to the element type."""

    def function(x: Any) -> Any:
        return x.astype("f16"), x.astype("bf16"), ops.full((), 0.0), ops.full((), -0.0)

    program = ag.simplify(ag.capture(function, V))
    assert names(program) == ["convert", "convert", "constant", "constant"]


# The bounds that rules state.


def before_and_after(function: Callable[..., Any], *types: ag.TensorType) -> tuple[Program, Program]:
    program = ag.capture(function, *types)
    return program, ag.simplify(program)


def both(function: Callable[..., Any], *given: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The result of `function` on the host before and after simplification, which must have changed the program."""
    program, after = before_and_after(function, *given)
    assert len(after.equations) < len(program.equations) or names(after) != names(program)
    return run(program, given, "host")[0], run(after, given, "host")[0]


@given(st.integers(0, 2**32 - 1), st.floats(0.5, 100, width=32), st.integers(-160, 160))
def test_bound_of_scale_by_powers_of_two(bits: int, a: float, exponent: int) -> None:
    """The same bits while ``x * a`` and the result are normal; else off by half a subnormal step at most."""
    x = np.asarray(np.uint32(bits)).view(np.float32)
    b = 2.0 ** max(min(exponent, 127), -149)
    program = ag.capture(lambda x: x * a * b, x)
    (before,), (after,) = run(program, [x], "host"), run(ag.simplify(program), [x], "host")
    tiny, step = float(np.finfo(F32).tiny), 2.0**-149
    with np.errstate(all="ignore"):
        inner = x * np.float32(a)
    if np.isfinite(inner) and abs(inner) >= tiny and (np.isinf(after) or abs(after) >= tiny):
        assert_same_bits(after, before, "normal numbers")
    elif np.isfinite(inner):
        exact = float(x) * float(np.float32(a)) * b
        assert abs(float(before) - float(after)) <= step / 2 * b + step / 2
        assert abs(float(after) - exact) <= abs(float(before) - exact) + 2.0**-24 * abs(exact)


def test_scale_is_left_alone_where_the_number_would_lose_bits() -> None:
    """1.1 * 2**-149 rounds to 2**-149: folded, every result would be off by 10 %."""
    pair = before_and_after(lambda x: x * 1.1 * 2.0**-149, S)
    before, after = (run(program, [np.float32(2.0**100)], "host")[0] for program in pair)
    assert before == after == np.float32(1.1) * 2.0**-49


@given(st.integers(0, 2**32 - 1), st.sampled_from([2.0, -3.5, 1e-30, 0.1]))
def test_bound_of_harmless_factor(bits: int, factor: float) -> None:
    """Only the sign of a zero can differ."""
    cotangent = np.asarray(np.uint32(bits)).view(np.float32)
    before, after = both(lambda c: ops.mul_no_nan(c, ops.full((), factor)), cotangent)
    assert_same_bits(after + np.float32(0), before + np.float32(0), "up to the sign of zero")


def test_a_factor_that_is_not_finite_keeps_its_guard() -> None:
    for factor in (np.inf, np.nan):
        assert "mul_no_nan" in simplified(lambda c, factor=factor: ops.mul_no_nan(c, ops.full((3,), factor)), V)


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min"])
def test_bound_of_reduce_nothing(name: str) -> None:
    """Only the sign of a zero can differ, and only for the sum."""
    x = np.array([[-0.0, 0.0, 1.5, -np.inf, np.nan]], np.float32)
    before, after = both(lambda x: getattr(ops, name)(x, axis=0), x)
    assert_same_bits(after + np.float32(0), before + np.float32(0), name)
    assert name == "sum" or np.signbit(after[0]) == np.signbit(before[0])


@given(st.floats(-(2.0**99), 2.0**99, width=32), st.integers(1, 2000))
def test_bound_of_sum_of_broadcast(x: float, n: int) -> None:
    """Within n ulps: the sum rounds up to n - 1 times, the product once."""
    before, after = both(lambda x: ops.broadcast_to(x, (n,)).sum() * 0.5, np.float32(x))
    assert abs(float(after) - float(before)) <= n * np.spacing(abs(before))


@pytest.mark.parametrize(
    ("x", "shape"),
    [(np.float16(1e-3), (70000,)), (np.asarray(1, BF16), (257,)), (np.float32(np.inf), (0,)), (np.float32(-2), (3, 0))],
)
def test_sum_of_broadcast_is_left_alone_where_the_count_is_not_exact(x: Any, shape: tuple[int, ...]) -> None:
    """70000 is infinite in f16, 257 is 256 in bf16, and 0 times infinity is NaN."""
    before, after = before_and_after(lambda x: ops.broadcast_to(x, shape).sum(), ag.spec((), x.dtype))
    assert_same_bits(run(after, [x], "host")[0], run(before, [x], "host")[0], f"{x} * {shape}")


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1), (0, 2), (1, 2), (0, 1, 2)])
def test_sum_of_broadcast_axes(axes: tuple[int, ...]) -> None:
    """Axes that are new, stretched or neither, in every mix; whole numbers, for which the order is no matter."""
    x = np.arange(12, dtype=np.float32).reshape(3, 1, 4)
    pair = before_and_after(lambda x: ops.broadcast_to(x, (2, 3, 5, 4)).sum(axes), ag.spec(x.shape))
    before, after = (run(program, [x], "host")[0] for program in pair)
    assert_same_bits(after, before, str(axes))


def test_attention_keeps_its_bits(rng: np.random.Generator) -> None:
    """Heads are moved by transposes that fold into the products; a sum over the result must not change its order."""

    def attention(q: Any, k: Any, v: Any) -> Any:
        q, k, v = (t.reshape((2, 40, 3, 16)).transpose(0, 2, 1, 3) for t in (q, k, v))
        weights = ops.softmax(q @ k.mT * 0.25)
        return (weights @ v).transpose(0, 2, 1, 3).reshape((2, 40, 48)), weights

    qkv = rng.normal(size=(3, 2, 40, 48)).astype(np.float32)
    before, after = before_and_after(attention, *[ag.spec((2, 40, 48))] * 3)
    assert names(before).count("transpose") == 5
    assert names(after).count("transpose") == 1
    for expected, found in zip(run(before, qkv, "host"), run(after, qkv, "host"), strict=True):
        assert_same_bits(found, expected, "attention")


# What must not be left in any simplified program.


def redundancies(program: Program) -> list[str]:
    """Lines that a person would strike out."""
    made = program.producers()
    found, seen = [], set()
    live = set(program.outputs)
    for equation in reversed(program.equations):
        if not live.intersection(equation.outputs):
            found.append(f"dead: {equation.primitive}")
        live.update(equation.inputs)
    for equation in program.equations:
        name = equation.primitive.name
        inner = [made[v].primitive.name if v in made else "" for v in equation.inputs]
        numbers = [_number(made, v) for v in equation.inputs]
        key = (name, equation.inputs, str(dict(equation.params)), *map(str, equation.output_types))
        if key in seen and name != "constant":
            found.append(f"repeated: {name}")
        seen.add(key)
        if name == "multiply" and 1 in numbers:
            found.append("multiply by one")
        if name in ("transpose", "reshape", "broadcast_in_dim", "negative") and name in inner:
            found.append(f"{name} of {name}")
        if name == "dot_general" and "transpose" in inner and all(v.type.ndim == 2 for v in equation.inputs):
            found.append("a transpose feeds a product")
        found += [problem for sub in equation.programs for problem in redundancies(sub)]
    return found


def _number(made: Any, value: Any) -> Any:
    """The number that fills a value, if one does."""
    equation = made.get(value)
    while equation is not None and equation.primitive.name == "broadcast_in_dim":
        equation = made.get(equation.inputs[0])
    is_number = equation is not None and equation.primitive.name == "constant" and equation.output.type.ndim == 0
    return equation.params["value"] if is_number else None


def mlp(x: Any, y: Any, w: Any, b: Any, v: Any) -> Any:
    h = ops.relu(x @ w + b)
    error = h @ v - y
    return ops.mean(error * error)


def normed(x: Any, scale: Any) -> Any:
    centred = x - x.mean(axis=-1, keepdims=True)
    return ops.mean(ops.tanh(centred * ops.rsqrt(ops.mean(centred * centred, axis=-1, keepdims=True) + 1e-5) * scale))


def recurrent(w: Any, xs: Any) -> Any:
    def cell(h: Any, x: Any) -> Any:
        h = ops.tanh(h @ w + x)
        return h, h * h

    h, squares = ag.scan(cell, ops.zeros((4,)), xs)
    return ops.mean(squares) + h.sum()


def entropy(x: Any, w: Any) -> Any:
    return -ops.mean(ops.sum(ops.log_softmax(x @ w) * ops.one_hot(np.arange(3), 5), axis=-1))


def chosen(x: Any) -> Any:
    return ag.cond(x.sum() > 0, lambda t: ops.sum(t * t), lambda t: ops.sum(ops.exp(t)), x)


@pytest.mark.parametrize(
    ("function", "types"),
    [
        (mlp, [M, ag.spec((3, 1)), ag.spec((4, 5)), ag.spec((5,)), ag.spec((5, 1))]),
        (normed, [M, ag.spec((4,))]),
        (recurrent, [ag.spec((4, 4)), ag.spec((6, 4))]),
        (entropy, [M, ag.spec((4, 5))]),
        (chosen, [V]),
    ],
)
def test_no_line_of_a_gradient_is_redundant(function: Callable[..., Any], types: list[ag.TensorType]) -> None:
    gradient = ag.reverse(ag.capture(function, *types))
    assert redundancies(gradient) == []
    assert len(ag.simplify(gradient).equations) == len(gradient.equations)


def test_redundancies_are_seen() -> None:
    """The check itself: an unsimplified program has every kind of them."""

    def function(x: Any) -> Any:
        unused = ops.exp(x)
        return ((x * 1).T.T @ x.T, ops.tanh(x) + ops.tanh(x), ops.negative(-x), unused * 2)[:3]

    found = redundancies(ag.capture(function, M))
    assert {"multiply by one", "transpose of transpose", "repeated: tanh", "negative of negative"} <= set(found)
    assert "a transpose feeds a product" in found
    assert any(problem.startswith("dead") for problem in found)
