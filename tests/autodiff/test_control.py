"""Derivatives of control flow: every form of `scan` and `cond` against JAX, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import antegrad as ag
from antegrad import ops
from antegrad.ir.program import Equation, Program
from tests.autodiff.composites import ANTEGRAD, JAX, close
from tests.support import devices, run

XS = np.array([0.5, -1.0, 2.0, 0.3])
W = np.float64(1.5)
ROWS = np.arange(12.0).reshape(4, 3) / 7 - 0.5


def control(program: Program, name: str) -> list[Equation]:
    """The equations of control flow of one kind, at the top of the program."""
    return [equation for equation in program.equations if equation.primitive.name == name]


def check(function: Callable[..., Any], *xs: Any) -> Program:
    """First, second and forward derivatives of ``function(library, *xs)`` by all float arguments, against JAX."""
    floats = [i for i, x in enumerate(xs) if np.asarray(x).dtype.kind == "f"]

    def bound(library: Any) -> Callable[..., Any]:
        return lambda *xs: function(library, *xs)

    def second(library: Any, grad: Any) -> Callable[..., Any]:
        def slopes(*xs: Any) -> Any:
            return sum(library.sum(library.sin(g)) for g in grad(bound(library), floats)(*xs))

        return grad(slopes, floats)

    with jax.enable_x64(True):
        first_expected = [np.asarray(g) for g in jax.jit(jax.grad(bound(JAX), floats))(*xs)]
        second_expected = jax.jit(second(JAX, jax.grad))(*xs)
    program = ag.capture(bound(ANTEGRAD), *xs)
    gradient = ag.reverse(program, [program.input_names[i] for i in floats])
    for device in devices():
        close(run(gradient, xs, device)[1:], first_expected, f"gradient on {device}")
    close(second(ANTEGRAD, ag.grad)(*xs), second_expected, "second derivative")
    tangents = [np.cos(np.asarray(x)) if i in floats else np.zeros_like(x) for i, x in enumerate(xs)]
    _, pushed = ag.jvp(bound(ANTEGRAD), xs, tangents)
    close(pushed, sum(np.sum(first_expected[k] * tangents[i]) for k, i in enumerate(floats)), "forward")
    return gradient


@pytest.mark.parametrize("length", [0, 1, 4])
@pytest.mark.parametrize("reverse", [False, True])
def test_scan(length: int, reverse: bool) -> None:
    def function(o: Any, w: Any, xs: Any) -> Any:
        c, ys = o.scan(lambda c, x: (o.sin(c * w + x), c * x), w * 2, xs, reverse=reverse)
        return c * w + o.sum(ys * ys)

    gradient = check(function, W, XS[:length])
    assert [eq.params["reverse"] for eq in control(gradient, "scan")] == [reverse, not reverse]


def test_scan_without_inputs() -> None:
    check(lambda o, w: o.scan(lambda c, _: (o.sin(c * w), None), w, None, length=5)[0], W)


def test_scan_without_carry() -> None:
    check(lambda o, w, xs: o.sum(o.scan(lambda c, x: (c, o.sin(x * w)), (), xs)[1]), W, XS)


def test_only_the_outputs_are_used() -> None:
    check(lambda o, w, xs: o.sum(o.scan(lambda c, x: (o.sin(c + x * w), c), w, xs)[1]), W, XS)


def test_only_the_carry_is_used() -> None:
    check(lambda o, w, xs: o.scan(lambda c, x: (o.sin(c + x * w), c * x), w, xs)[0], W, XS)


def test_a_carry_that_is_not_used() -> None:
    def function(o: Any, w: Any, xs: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            a, b = carry
            return (o.sin(a * x), b * o.exp(a)), b

        (a, _), _ = o.scan(step, (w, w), xs)
        return a

    gradient = check(function, W, XS)
    text = gradient.python()
    assert "np.exp" not in text


def test_a_carry_that_passes_through() -> None:
    check(lambda o, w, xs: o.sum(o.scan(lambda c, x: (c, c * x), w, xs)[1]), W, XS)


def test_a_carry_that_becomes_active_after_the_first_step() -> None:
    """It starts as a constant, and depends on w from the second step on."""
    check(
        lambda o, w, xs: o.scan(lambda c, x: ((c[1] * x, o.sin(c[0] + w)), None), (np.float64(0), np.float64(1)), xs)[
            0
        ][0],
        W,
        XS,
    )


def test_an_integer_carry() -> None:
    def function(o: Any, w: Any, xs: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            i, c = carry
            return (i + 1, o.sin(c * x) + w * i), i

        (_, c), counts = o.scan(step, (np.int32(0), w), xs)
        return c * o.sum(counts) + w

    check(function, W, XS)


def test_integer_and_bool_inputs() -> None:
    def function(o: Any, w: Any, xs: Any, ns: Any, flags: Any) -> Any:
        def step(c: Any, t: Any) -> Any:
            x, n, flag = t
            return o.where(flag, o.sin(c + x), c * n), n

        return o.scan(step, w, (xs, ns, flags))[0]

    check(function, W, XS, np.array([1, 2, 3, 4], np.int32), np.array([True, False, True, True]))


def test_a_start_of_another_argument() -> None:
    check(lambda o, c, w, xs: o.sum(o.scan(lambda c, x: (o.tanh(c * w + x), c), c, xs)[1]), ROWS[0], W, ROWS)


def test_the_same_value_as_carry_and_output() -> None:
    def function(o: Any, w: Any, xs: Any) -> Any:
        def step(c: Any, x: Any) -> Any:
            c = o.sin(c * w + x)
            return c, (c, c)

        c, (a, b) = o.scan(step, w, xs)
        return c + o.sum(a * b)

    check(function, W, XS)


def test_cond_with_operands_and_captured_values() -> None:
    def function(o: Any, w: Any, xs: Any) -> Any:
        return o.cond(xs[0] > 0, lambda x: o.sum(o.sin(x * w)), lambda x: o.prod(x) + w * w, xs)

    check(function, W, XS)
    check(function, W, -XS)


def test_a_branch_without_a_gradient() -> None:
    """Zeros come from the branch that reads nothing."""
    for sign in (1, -1):
        check(lambda o, w, xs: o.cond(xs[0] > 0, lambda: w * o.sum(xs), lambda: w * 0 + 3.0), W, sign * XS)


def test_cond_with_integer_operands_and_results() -> None:
    def function(o: Any, x: Any, n: Any) -> Any:
        y, count = o.cond(n > 2, lambda x, n: (o.sin(x), n), lambda x, n: (x * x, n + 1), x, n)
        return o.sum(y) * count

    check(function, XS, np.int32(5))


def test_nested_cond() -> None:
    def function(o: Any, x: Any) -> Any:
        return o.cond(x > 0, lambda x: o.cond(x > 1, lambda x: x**3, lambda x: o.sin(x), x), lambda x: x * x, x)

    for value in (2.0, 0.5, -1.0):
        check(function, np.float64(value))


def test_fori_loop() -> None:
    check(lambda o, w: o.fori(2, 6, lambda i, c: o.sin(c * w + i), w), W)


def test_map() -> None:
    gradient = ag.grad(lambda xs: ops.sum(ag.flow.map(lambda x: ops.sin(x) * x, xs)))(XS)
    np.testing.assert_allclose(gradient, np.cos(XS) * XS + np.sin(XS))


def test_a_captured_array_in_a_body() -> None:
    table = np.linspace(-1, 1, 210).reshape(3, 70)

    def function(o: Any, x: Any) -> Any:
        return o.sum(o.scan(lambda c, _: (o.sin((c @ table) @ o.transpose(table) / 20), None), x, None, length=3)[0])

    gradient = ag.reverse(ag.capture(lambda x: function(ANTEGRAD, x), ROWS[0]))
    assert gradient.input_names == ("x", "table")
    with jax.enable_x64(True):
        expected = jax.grad(lambda x: function(JAX, x))(ROWS[0])
    for device in devices():
        close(run(gradient, [ROWS[0]], device)[1], expected, device)


def test_the_gradient_of_a_long_scan_is_no_larger_a_program() -> None:
    """So it takes no longer to compile: the steps are a loop in both passes."""

    def total(w: Any, xs: Any) -> Any:
        return ops.sum(ag.scan(lambda c, x: (ops.tanh(c * w + x), c), w, xs)[1])

    def size(steps: int) -> int:
        program = ag.reverse(ag.capture(total, ag.spec(()), ag.spec((steps,))))
        return len(list(program.all_equations()))

    assert size(1000) == size(10)


# while


def newton(x: Any) -> Any:
    return ag.while_loop(lambda y: ops.abs(y * y - x) > 1e-12, lambda y: (y + x / y) / 2, x)


def test_reverse_mode_through_while_is_refused_with_the_place() -> None:
    for refused in (ag.grad(newton), lambda x: ag.vjp(newton, x), lambda x: ag.reverse(ag.capture(newton, x))):
        with pytest.raises(ag.RuleMissing, match=r"while_loop has no reverse mode.*max_steps.*ag\.scan") as error:
            refused(np.float64(2))
        assert f"{__file__}:" in str(error.value)


def growing(o: Any, x: Any, rate: Any, count: Any) -> Any:
    """A loop with an integer, a float that depends on both, and one that depends on neither at first."""
    state = count, x, o.zeros((), "float64")
    _, value, total = o.while_loop(
        lambda s: s[0] < 6, lambda s: (s[0] + 1, s[1] * o.sin(s[1]) + rate, s[2] + s[1]), state
    )
    return value * total


@pytest.mark.parametrize("count", [0, 5, 9])
def test_forward_mode_through_while(count: int) -> None:
    """The tangent by each argument, and the tangent of that tangent, on every device."""
    xs = np.float64(0.7), np.float64(0.2)

    def slope(library: Any, jvp: Any) -> Callable[..., Any]:
        return lambda x, rate: jvp(lambda x, rate: growing(library, x, rate, np.int32(count)), (x, rate), xs[::-1])[1]

    def second(library: Any, jvp: Any) -> Callable[..., Any]:
        return lambda x, rate: jvp(slope(library, jvp), (x, rate), xs)[1]

    for made in (slope, second):
        with jax.enable_x64(True):
            expected = made(JAX, jax.jvp)(*xs)
        program = ag.capture(made(ANTEGRAD, ag.jvp), *xs)
        for device in devices():
            close(run(program, xs, device), [expected], f"{made.__name__} on {device}")


def test_forward_mode_through_while_in_a_scan_and_a_batch() -> None:
    def roots(o: Any, c: Any, xs: Any) -> Any:
        def root(x: Any) -> Any:
            return o.while_loop(lambda y: o.abs(y * y - x) > 1e-12, lambda y: (y + x / y) / 2, x)

        return o.scan(lambda c, x: (c + root(x) * c, root(c)), c, xs)

    xs, ts = (np.float64(2), np.array([1.0, 2, 3])), (np.float64(1), np.array([1.0, 0, 2]))
    with jax.enable_x64(True):
        expected = jax.jvp(lambda *xs: roots(JAX, *xs), xs, ts)
    close(ag.jvp(lambda *xs: roots(ANTEGRAD, *xs), xs, ts), expected, "scan")
    slopes = ag.vmap(ag.jacobian(newton, mode="forward"))(np.array([2.0, 4, 9]))
    close([slopes], [1 / (2 * np.sqrt([2.0, 4, 9]))], "batch")


@pytest.mark.parametrize("bound", [0, 1, 3, 30])
def test_a_bounded_while_has_reverse_mode(bound: int) -> None:
    """As many steps as the condition or the bound allows, with first and second derivatives."""

    def bounded(o: Any, x: Any) -> Any:
        def body(y: Any) -> Any:
            return (y + x / y) / 2

        if o is ANTEGRAD:
            return ag.while_loop(lambda y: ops.abs(y * y - x) > 1e-12, body, x, max_steps=bound)
        y = x
        for _ in range(bound):
            y = o.where(o.abs(y * y - x) > 1e-12, body(y), y)
        return y

    check(bounded, np.float64(2))


def test_a_loop_whose_result_has_no_cotangent_is_no_obstacle() -> None:
    """A count of steps, a result that only `aux` returns, and one behind `stop_gradient`."""

    def count(x: Any) -> Any:
        _, steps = ag.while_loop(lambda s: s[0] > 1, lambda s: (s[0] / 2, s[1] + 1), (x, 0))
        return x * x + steps.astype("f64")

    assert ag.grad(count)(np.float64(40)) == 80
    gradient, root = ag.grad(lambda x: (x * x, newton(x)), has_aux=True)(np.float64(2))
    assert gradient == 4
    assert root == pytest.approx(2**0.5)
    assert ag.grad(lambda x: x * ag.stop_gradient(newton(x)))(np.float64(2)) == pytest.approx(2**0.5)


def test_a_loop_on_what_is_not_differentiated() -> None:
    assert ag.grad(lambda x, n: x * newton(n))(np.float64(3), np.float64(4)) == pytest.approx(2)


# What the forward pass keeps.


def test_only_what_the_backward_steps_read_is_stored() -> None:
    """tanh needs its result; the sum needs nothing; the product with a constant needs only the constant."""
    w = np.linspace(0, 1, 9).reshape(3, 3)

    def function(w: Any, xs: Any) -> Any:
        def step(c: Any, x: Any) -> Any:
            return ops.tanh(c @ w + x) * 0.5 + x, None

        return ops.sum(ag.scan(step, xs[0], xs)[0])

    gradient = ag.reverse(ag.capture(function, w, ROWS), ["xs"])
    forward, backward = control(gradient, "scan")
    extra = [str(v.type) for v in forward.params["body"].outputs[1:]]
    assert extra == ["f64[3]"]
    assert [str(v.type) for v in backward.inputs].count("f64[4,3]") == 1


def test_a_linear_loop_stores_nothing() -> None:
    gradient = ag.reverse(ag.capture(lambda c, xs: ag.scan(lambda c, x: (c * 0.5 + x, None), c, xs)[0], W, XS))
    scans = control(gradient, "scan")
    assert all(len(scan.params["body"].outputs) <= 2 for scan in scans)


def test_what_depends_on_constants_alone_is_made_again() -> None:
    """exp(w) is the same in every step: the backward loop computes it instead of reading four copies."""

    def function(c: Any, w: Any, xs: Any) -> Any:
        return ops.sum(ag.scan(lambda c, x: (c * ops.exp(w) + x, None), c, xs)[0])

    w = np.ones((3,))
    gradient = ag.reverse(ag.capture(function, ROWS[0], w, ROWS), ["c"])
    (scan,) = [eq for eq in control(gradient, "scan") if eq.source.part == "backward"]
    assert "f64[4,3]" not in [str(v.type) for v in scan.inputs]
    assert "exp" in [eq.primitive.name for eq in scan.params["body"].equations]


def test_the_printed_backward_loop() -> None:
    def net(w: Any, xs: Any) -> Any:
        def cell(h: Any, x: Any) -> Any:
            h = ops.tanh(h * w + x)
            return h, h

        _, hs = ag.scan(cell, 0.0, xs)
        return ops.mean(hs * hs)

    text = ag.reverse(ag.capture(net, ag.spec(()), ag.spec((4,))), ["w"]).python()
    assert "def cell_forward(w, h, x):" in text
    assert "def cell_backward(w, " in text
    assert "# backward" in text
    assert "reverse=True" in text


def test_a_scan_of_a_scan_grows_by_its_body_only() -> None:
    """The number of equations does not depend on the number of steps."""

    def sized(length: int) -> int:
        def function(w: Any) -> Any:
            def outer(c: Any, _: Any) -> Any:
                return ag.scan(lambda c, _: (ops.sin(c * w), None), c, None, length=length)[0], None

            return ag.scan(outer, w, None, length=length)[0]

        return len(list(ag.reverse(ag.capture(function, W)).all_equations()))

    assert sized(2) == sized(50)


def test_gradients_through_jax_and_antegrad_agree_for_a_long_loop() -> None:
    """A thousand steps of a contracting map: rounding stays small and nothing is unrolled."""

    def function(o: Any, w: Any) -> Any:
        return o.scan(lambda c, _: (o.sin(c) * w, None), w, None, length=1000)[0]

    with jax.enable_x64(True):
        expected = jax.grad(lambda w: function(JAX, w))(jnp.float64(0.9))
    found = ag.grad(lambda w: function(ANTEGRAD, w))(np.float64(0.9))
    assert found == pytest.approx(float(expected), rel=1e-9)
