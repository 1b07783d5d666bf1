"""Capture: pytrees, names, constants, places, nesting, threads; and what misuse is told."""

from __future__ import annotations

import functools
import math
import re
import sys
import threading
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import antegrad as ag
from antegrad import nn, ops
from antegrad.ir.program import Program
from antegrad.ops.dispatch import current_builder, layer
from tests.support import run

V, M, S = ag.spec((3,)), ag.spec((3, 4)), ag.spec(())
ONES = np.ones(3, np.float32)
Pair = namedtuple("Pair", ["left", "right"])


def printed(program: Program) -> str:
    """The lines of the function body, without comments."""
    body = program.python().split('"""')[-1]
    return re.sub(r" *#.*", "", body).strip()


# Pytrees, and the names of inputs and outputs.


@pytest.mark.parametrize(
    ("examples", "names"),
    [
        ([V], "x"),
        ([{"w": V, "b": V}], "b w"),
        ([[V, V]], "x.0 x.1"),
        ([(V,)], "x.0"),
        ([Pair(V, V)], "left right"),
        ([{"w": V}, {"w": V}], "x.w y.w"),
        ([{"w": V, "b": V}, {"w": V}], "x.b x.w y.w"),
        ([{"y": V}, V], "x.y y"),
        ([{"a": {"b": V}}, None, V], "a.b z"),
        ([{"a": [V, {"c": V}]}], "x.a.0 x.a.1.c"),
        ([None, (), V], "z"),
        ([V, V, V, V], "x y z rest0"),
        ([{1: V}], "x.1"),
        ([{"lambda": V, "np": V}], "lambda np"),
    ],
)
def test_names_of_inputs(examples: list[Any], names: str) -> None:
    def function(x: Any, y: Any = None, z: Any = None, *rest: Any) -> Any:
        return 1.0

    assert " ".join(ag.capture(function, *examples).input_names) == names


def test_names_of_the_parameters_of_a_model() -> None:
    model = nn.Sequential(nn.Dense(2, 3, key=ag.random.key(0)), ops.relu, nn.Dense(3, 1, key=ag.random.key(1)))
    program = ag.capture(lambda model, x: model(x), model, ag.spec((5, 2)))
    assert program.input_names == ("0.w", "0.b", "2.w", "2.b", "x")


@pytest.mark.parametrize(
    ("result", "names"),
    [
        (lambda x: x * 2, "out"),
        (lambda x: (x * 2, x * 3), "out0 out1"),
        (lambda x: {"loss": x * 2, "aux": [x * 3, x]}, "out0 x loss"),
        (lambda x: Pair(x * 2, x), "left right"),
        (lambda x: (x, x), "x x_1"),
        (lambda x: (x, None, {"deep": {"y": x + 1}}), "x deep.y"),
        (lambda x: [], ""),
        (lambda x: None, ""),
    ],
)
def test_names_of_outputs(result: Callable[..., Any], names: str) -> None:
    assert " ".join(ag.capture(result, V).output_names) == names


def test_named_variables_name_outputs() -> None:
    def function(x: Any) -> Any:
        loss = x.sum()
        error = x * 2
        return loss, error

    assert ag.capture(function, V).output_names == ("loss", "error")


@pytest.mark.parametrize(
    "tree", [1.5, (1.0, [2.0, {"a": 3.0, "b": None}]), Pair(1.0, (2.0,)), {"z": 1.0, "a": 2.0}, [], None, ((),)]
)
def test_results_have_the_structure_that_the_function_returned(tree: Any) -> None:
    program = ag.capture(lambda t: t, tree)
    found = program.run(tree, device="host")
    assert (
        repr(found).replace("array(", "").replace(", dtype=float32)", "") == repr(tree).replace(".0", ".")
        or found == tree
    )


def test_a_module_goes_in_and_comes_out() -> None:
    model = nn.Dense(2, 3, key=ag.random.key(0))
    found = ag.capture(lambda m: m, model).run(model, device="host")
    assert type(found) is nn.Dense
    np.testing.assert_array_equal(found.w, model.w)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: x, "program"),
        (functools.partial(lambda y, x: x, 1), "partial"),
        (math.sqrt, "sqrt"),
        (nn.Dense(3, 3, key=ag.random.key(0)), "Dense"),
    ],
)
def test_names_of_programs(function: Any, name: str) -> None:
    if function is math.sqrt:
        function = lambda x: x  # noqa: E731
        function.__name__ = "sqrt"
    assert ag.capture(function, V).name == name
    assert ag.capture(function, V, name="my net").name == "my net"


def test_a_program_with_any_name_prints_and_parses() -> None:
    for name in ("my net-1", "größe", "lambda", "np", "1st"):
        program = ag.capture(lambda x: x * 2, V, name=name)
        for device in ("host", "cpu"):
            np.testing.assert_array_equal(program.run(ONES, device=device), 2 * ONES)


# The names of values.


def test_variables_name_values() -> None:
    def function(x: Any, w: Any) -> Any:
        hidden = ops.tanh(x @ w)
        rest = hidden - 1
        return (hidden * rest).sum()

    assert printed(ag.capture(function, M, ag.spec((4, 2)))).splitlines() == [
        "hidden = np.tanh(x @ w)",
        "    rest = hidden - 1",
        "    out = (hidden * rest).sum()",
        "    return out",
    ]


def test_a_variable_that_is_assigned_again() -> None:
    def function(x: Any) -> Any:
        h = x * 2
        for _ in range(3):
            h = ops.tanh(h)
        return h

    lines = printed(ag.capture(function, V)).split("\n    ")
    assert lines == ["h = x * 2", "h_1 = np.tanh(h)", "h_2 = np.tanh(h_1)", "h_3 = np.tanh(h_2)", "return h_3"]


def test_variables_of_called_functions_and_of_closures() -> None:
    def block(x: Any) -> Any:
        inner = ops.exp(x)
        return inner * inner

    def function(x: Any) -> Any:
        outer = block(x)

        def nested() -> Any:
            deep = outer + 1
            return deep * deep

        return nested()

    names = printed(ag.capture(function, V))
    assert "inner = np.exp(x)" in names
    assert "outer = inner * inner" in names
    assert "deep = outer + 1" in names


def test_what_a_function_gets_and_gives_has_the_names_of_its_caller() -> None:
    """Not those of the parameters that hold it on the way."""

    def dense(x: Any, w: Any) -> Any:
        return x @ w

    def rectified(x: Any) -> Any:
        return ops.relu(x)

    def function(batch: Any, w0: Any, w1: Any) -> Any:
        hidden = rectified(dense(batch, w0))
        return dense(hidden, w1)

    lines = printed(ag.capture(function, M, ag.spec((4, 4)), ag.spec((4, 2)))).split("\n    ")
    assert lines == ["hidden = np.maximum(batch @ w0, 0)", "out = hidden @ w1", "return out"]


def test_a_parameter_that_is_assigned_again_is_a_variable() -> None:
    def function(x: Any) -> Any:
        def inner(x: Any) -> Any:
            x = ops.exp(x)
            return x * x

        return inner(x * 2)

    assert printed(ag.capture(function, V)).split("\n    ") == ["x_1 = np.exp(x * 2)", "out = x_1 * x_1", "return out"]


def test_what_has_no_variable_has_no_name() -> None:
    def function(xs: Any) -> Any:
        parts = [ops.exp(x) for x in xs]
        table = {"a": parts[0] * 2}
        return table["a"] + parts[1]

    assert printed(ag.capture(function, [V, V])).split("\n    ") == [
        "out = np.exp(xs_0) * 2 + np.exp(xs_1)",
        "return out",
    ]


def test_an_underscore_keeps_a_value_unnamed() -> None:
    def function(x: Any) -> Any:
        _hidden = x * 2
        return _hidden + 1

    assert printed(ag.capture(function, V)) == "out = x * 2 + 1\n    return out"


def test_names_that_python_or_numpy_have_taken() -> None:
    def function(np: Any, sum: Any, scan: Any) -> Any:
        bfloat16 = np + sum
        pad = ag.scan(lambda c, x: (c + x, c), scan, bfloat16)
        return pad[0]

    program = ag.capture(function, V, V, S)
    assert program.input_names == ("np", "sum", "scan")
    assert run(program, [ONES, ONES, np.float32(1)], "host")[0] == 7


# Constants.


@pytest.mark.parametrize("size", [1, 64])
def test_small_arrays_are_embedded(size: int) -> None:
    table = np.arange(size, dtype=np.float32)
    program = ag.capture(lambda x: x + table, ag.spec((size,)))
    assert program.input_names == ("x",)
    np.testing.assert_array_equal(program.run(table, device="host"), 2 * table)


@pytest.mark.parametrize("device", ["host", "cpu"])
def test_large_arrays_are_captured_visibly(device: str) -> None:
    table = np.arange(65, dtype=np.float32)
    program = ag.capture(lambda x: (x + table) * table, ag.spec((65,)))
    assert program.input_names == ("x", "table")
    assert program.argument_count == 1
    assert "table: f32[65]  (captured)" in program.python()
    np.testing.assert_array_equal(program.run(table, device=device), 2 * table * table)


def test_a_captured_array_is_known_by_identity() -> None:
    a, b = np.zeros(70, np.float32), np.zeros(70, np.float32)
    program = ag.capture(lambda x: x + a + b + a, ag.spec((70,)))
    assert program.input_names == ("x", "a", "b")


def test_a_captured_array_whose_name_is_taken() -> None:
    def outer() -> Program:
        x = np.ones(70, np.float32)
        return ag.capture(lambda y: y + x, ag.spec((70,)))

    def inner(x: Any) -> Any:
        return x + [np.ones(70, np.float32)][0]

    assert outer().input_names == ("y", "x")
    assert ag.capture(inner, ag.spec((70,))).input_names == ("x", "constant")


def test_captured_arrays_pass_through_gradients_and_passes() -> None:
    w = np.linspace(0, 1, 70).astype(np.float32)
    gradient = ag.reverse(ag.capture(lambda x: ops.sum(x * w * w), ag.spec((70,))))
    assert gradient.input_names == ("x", "w")
    np.testing.assert_allclose(gradient.run(np.zeros(70, np.float32), device="host")[1], w * w, rtol=1e-6)


def test_arrays_of_another_byte_order() -> None:
    big = np.arange(3, dtype=">f4")
    np.testing.assert_array_equal(ag.capture(lambda x: x + big, V).run(ONES, device="host"), [1, 2, 3])


# Places.


def line_of(text: str) -> int:
    """The line of this file that ends with the comment `text`."""
    with open(__file__, encoding="utf-8") as file:
        (found,) = [number for number, line in enumerate(file, 1) if line.rstrip().endswith(f"# {text}")]
    return found


def test_equations_know_their_line_and_layer() -> None:
    def function(x: Any) -> Any:
        y = ops.exp(x)  # first place
        with layer("blocks.0"):
            y = np.tanh(y) + 1  # second place
        return y

    sources = {eq.primitive.name: eq.source for eq in ag.capture(function, V).equations}
    assert sources["exp"].file == __file__
    assert (sources["exp"].line, sources["exp"].layer) == (line_of("first place"), "")
    assert (sources["tanh"].line, sources["tanh"].layer) == (line_of("second place"), "blocks.0")


def test_a_users_folder_may_be_called_jax(tmp_path: Any) -> None:
    """Frames of the libraries in between are skipped by where they lie, not by the names of folders."""
    home = tmp_path / "jax"
    home.mkdir()
    (home / "contextlib.py").write_text("def f(x):\n    hidden = x * 2\n    return hidden + 1\n", encoding="utf-8")
    scope: dict[str, Any] = {}
    exec(compile((home / "contextlib.py").read_text(), str(home / "contextlib.py"), "exec"), scope)
    program = ag.capture(scope["f"], V)
    assert "hidden = x * 2" in printed(program)
    assert program.equations[-1].source.location == "contextlib.py:3"


def test_the_line_inside_a_tree_map() -> None:
    """jax's tree_map stands between; the line is that of the user's function."""

    def double(x: Any) -> Any:
        return x * 2  # mapped place

    program = ag.capture(lambda tree: ag.tree.map(double, tree), [V, V])
    assert {eq.source.line for eq in program.equations if eq.source.file} == {line_of("mapped place")}


# NumPy's functions.


@pytest.mark.parametrize(
    "function",
    [
        lambda x: np.tanh(np.exp(x) + np.abs(x)),
        lambda x: np.sum(x, axis=0) + np.mean(x, axis=0, keepdims=False),
        lambda x: np.where(x > 0, x, -x),
        lambda x: np.concatenate([x, np.stack([x[0], x[1]])], axis=0),
        lambda x: np.transpose(x, axes=(1, 0)) @ x,
        lambda x: np.maximum(x, 0) * np.float32(2),
        lambda x: np.float32(2) * x - np.ones((3, 4), np.float32),
        lambda x: np.ones((3, 4), np.float32) / (1 + x * x),
        lambda x: np.einsum("ij,kj->ik", x, x),
        lambda x: np.reshape(x, (4, 3)).max(axis=1),
        lambda x: np.expand_dims(np.squeeze(x[:, :1]), axis=0),
        lambda x: np.clip(x, -0.5, 0.5) + np.clip(x, a_min=0, a_max=None),
        lambda x: np.linalg.norm(x, axis=1),
        lambda x: np.dot(x, np.ones((4, 2), np.float32)),
        lambda x: np.sort(x, axis=1) + np.zeros_like(x),
        lambda x: np.broadcast_to(x[0], (2, 4)),
        lambda x: np.tril(np.outer(x[0], x[1])),
        lambda x: np.std(x, axis=1) + np.var(x, axis=1, ddof=1),
        lambda x: np.split(x, 2, axis=1)[1],
        lambda x: np.argmax(x, axis=1).astype(np.int32),
        lambda x: np.take(x, np.array([2, 0]), axis=0),
        lambda x: np.power(np.abs(x), 2.5) // 0.5 % 2,
    ],
)
def test_numpy_on_traced_tensors(function: Callable[..., Any], rng: np.random.Generator) -> None:
    """The captured program gives what NumPy gives on arrays."""
    x = rng.normal(size=(3, 4)).astype(np.float32)
    found, expected = run(ag.capture(function, x), [x], "host")[0], function(x)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-6)


# State: nesting, threads, exceptions.


def test_an_exception_leaves_no_trace() -> None:
    def fails(x: Any) -> Any:
        with layer("0"):
            ag.cond(x.sum() > 0, lambda x: x, lambda x: 1 / 0, x)

    with pytest.raises(ZeroDivisionError):
        ag.capture(fails, V)
    assert current_builder() is None
    assert isinstance(ops.exp(ONES), np.ndarray)
    program = ag.capture(lambda x: x * 2, V)
    assert program.equations[-1].source.layer == ""


def test_captures_in_captures_are_independent() -> None:
    def function(x: Any) -> Any:
        inner = ag.capture(lambda y: y * 3, V)
        return x + inner.equations[-1].output.type.size

    program = ag.capture(function, V)
    assert [eq.primitive.name for eq in program.equations if eq.primitive.name == "multiply"] == []


def test_threads_do_not_see_each_other() -> None:
    """Two captures at once, which hand over to each other after every operation."""
    turns = threading.Barrier(2, timeout=20)
    programs: dict[str, Program] = {}

    def work(name: str, operation: Callable[..., Any]) -> None:
        def function(x: Any) -> Any:
            for _ in range(20):
                turns.wait()
                x = operation(x)
            return x

        programs[name] = ag.capture(function, V)

    threads = [threading.Thread(target=work, args=pair) for pair in (("a", ops.exp), ("b", ops.tanh))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: {eq.primitive.name for eq in program.equations} for name, program in programs.items()} == {
        "a": {"exp"},
        "b": {"tanh"},
    }
    assert all(len(program.equations) == 20 for program in programs.values())


def test_a_thread_started_inside_a_capture_does_not_trace() -> None:
    found: list[Any] = []

    def function(x: Any) -> Any:
        thread = threading.Thread(target=lambda: found.append(ops.exp(ONES)))
        thread.start()
        thread.join()
        return x

    assert ag.capture(function, V).equations == ()
    assert isinstance(found[0], np.ndarray)


def test_ops_on_arrays_inside_a_capture_become_equations() -> None:
    """What reads no input is a constant after simplification."""
    program = ag.capture(lambda x: x + ops.exp(np.zeros(3, np.float32)), V)
    assert "exp" in [eq.primitive.name for eq in program.equations]
    assert "exp" not in [eq.primitive.name for eq in ag.simplify(program).equations]


def test_frames_of_the_user_are_let_go() -> None:
    """A finished capture holds on to no frame, and so to none of the user's arrays."""

    class Big(np.ndarray):
        pass

    freed: list[bool] = []

    def function(x: Any) -> Any:
        import weakref

        scratch = np.zeros(1000).view(Big)
        weakref.finalize(scratch, freed.append, True)
        return x * scratch.size

    program = ag.capture(function, V)
    assert freed == [True]
    assert sys.getrefcount(program) == 2


def test_methods_of_a_tensor_are_those_of_an_array() -> None:
    x, i = np.array([[1.5, -2.5, 3.0]]), np.array([2, 0])

    def methods(x: Any) -> Any:
        quotient, rest = divmod(x, 2)
        turned, left = divmod(7.0, x)
        return {
            "var": x.var(1), "std": x.std(axis=1, ddof=1), "clip": x.clip(-1, 2), "round": x.round(), "again": round(x),
            "dot": x.dot(x.T), "take": x.take(i, 1), "repeat": x.repeat(2, 0), "cumsum": x.cumsum(1),
            "quotient": quotient, "rest": rest, "turned": turned, "left": left,
        }  # fmt: skip

    expected = {**methods_of_numpy(x, i)}
    found = ag.capture(methods, x).run(x, device="host")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, err_msg=name)


def methods_of_numpy(x: np.ndarray, i: np.ndarray) -> dict[str, np.ndarray]:
    (quotient, rest), (turned, left) = divmod(x, 2), divmod(7.0, x)
    return {
        "var": x.var(1), "std": x.std(axis=1, ddof=1), "clip": x.clip(-1, 2), "round": x.round(), "again": x.round(),
        "dot": x.dot(x.T), "take": x.take(i, 1), "repeat": x.repeat(2, 0), "cumsum": x.cumsum(1),
        "quotient": quotient, "rest": rest, "turned": turned, "left": left,
    }  # fmt: skip


def test_a_traced_tensor_is_not_formatted_as_a_number() -> None:
    def formatted(x: Any) -> Any:
        assert f"{x}" == "Tensor(x: f32[2])"
        return f"{x:.3f}"

    with pytest.raises(ag.TraceError, match=r"formatted with '.3f'"):
        ag.capture(formatted, ag.spec((2,)))
