"""The printed NumPy module: how it looks, that it runs alone with the host's bits, and that one can step through it."""

from __future__ import annotations

import ast
import gc
import linecache
import re
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings

import antegrad as ag
from antegrad import ops
from antegrad.ir.program import Program
from antegrad.runtime import host
from tests.passes.programs import arrays, programs
from tests.render.programs import PROGRAMS, inputs, program
from tests.support import assert_same_bits, run

V, M, S = ag.spec((3,)), ag.spec((3, 4)), ag.spec(())
each = pytest.mark.parametrize("name", list(PROGRAMS))


def body(printed: Program | str) -> str:
    """The last function, without docstring and comments."""
    text = printed if isinstance(printed, str) else printed.python()
    return re.sub(r" +# .*", "", text.split('"""')[-1]).strip("\n")


def numbered(text: str) -> str:
    return re.sub(r"programs\.py:\d+", "programs.py:N", text)


def executed(text: str) -> Any:
    """The last function of a printed module."""
    scope: dict[str, Any] = {}
    exec(compile(text, "<printed>", "exec"), scope)
    functions = [node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    return scope[functions[-1]]


# How it looks.


def test_the_gradient_of_the_disc() -> None:
    """The target of the design: a person finds every layer's gradient, and no line is one too many."""
    assert numbered(program("disc").python()) == DISC


DISC = '''\
"""The program `disc_gradient` as NumPy; edit it and bring it back with `antegrad.from_python`."""

import numpy as np


def disc_gradient(x, y, b0, w0, b2, w2, b4, w4):
    """Inputs:
        x: f32[512,2]
        y: f32[512,1]
        b0: f32[16]  (0.b)
        w0: f32[2,16]  (0.w)
        b2: f32[16]  (2.b)
        w2: f32[16,16]  (2.w)
        b4: f32[1]  (4.b)
        w4: f32[16,1]  (4.w)
    Returns:
        loss: f32[]
        d_0.w: f32[2,16]
        d_0.b: f32[16]
        d_2.w: f32[16,16]
        d_2.b: f32[16]
        d_4.w: f32[16,1]
        d_4.b: f32[1]
    """
    # forward
    h0 = np.maximum(x @ w0 + b0, 0)                # f32[512,16]  0-1  programs.py:N
    h1 = np.maximum(h0 @ w2 + b2, 0)               # f32[512,16]  2-3  programs.py:N
    prediction = h1 @ w4 + b4                      # f32[512,1]  4  programs.py:N
    residual = prediction - y                      # f32[512,1]  programs.py:N
    loss = (residual * residual).sum() / 512       # f32[]  programs.py:N
    # backward
    d_residual = residual * (1 / 256)              # f32[512,1]  programs.py:N
    d_b4 = d_residual.sum(axis=0)                  # f32[1]  4  programs.py:N
    d_w4 = h1.T @ d_residual                       # f32[16,1]  4  programs.py:N
    d_h1 = np.where(h1 > 0, d_residual @ w4.T, 0)  # f32[512,16]  3-4  programs.py:N
    d_b2 = d_h1.sum(axis=0)                        # f32[16]  2  programs.py:N
    d_w2 = h0.T @ d_h1                             # f32[16,16]  2  programs.py:N
    d_h0 = np.where(h0 > 0, d_h1 @ w2.T, 0)        # f32[512,16]  1-3  programs.py:N
    d_b0 = d_h0.sum(axis=0)                        # f32[16]  0  programs.py:N
    d_w0 = x.T @ d_h0                              # f32[2,16]  0  programs.py:N
    return loss, d_w0, d_b0, d_w2, d_b2, d_w4, d_b4
'''


@each
def test_a_module_parses_and_has_no_line_too_long(name: str) -> None:
    for inline in (True, False):
        text = program(name).python(inline)
        ast.parse(text)
        code = [re.sub(r" +# .*", "", line) for line in text.split("def " + program(name).name)[-1].splitlines()]
        assert max(map(len, code)) <= 120


@pytest.mark.parametrize(
    ("function", "types", "expected"),
    [
        (lambda x: (x + 1) * x, [V], "out = (x + 1) * x"),
        (lambda x: x * 0.1 + 1 / 3, [V], "out = x * 0.1 + 1 / 3"),
        (lambda x, b: x + b, [M, ag.spec((4,))], "out = x + b"),
        (lambda x, b: x + b[:, None], [M, V], "out = x + b[:, None]"),
        (lambda x, b: x * b, [M, S], "out = x * b"),
        (lambda x: x.sum(axis=0, keepdims=True) + x, [M], "out = x.sum(axis=0)[None] + x"),
        (lambda x: ops.zeros((3,)) + x, [V], "out = 0 + x"),
        (lambda x: ops.where(x > 0, x, 0), [V], "out = np.where(x > 0, x, 0)"),
        (lambda x: ops.where(x > 0, 1.0, 2.0), [V], "out = np.where(x > 0, np.float32(1), 2)"),
        (lambda x: x.T @ x, [M], "out = x.T @ x"),
        (lambda x: x.reshape((2, 6)).T, [M], "out = x.reshape((2, 6)).T"),
        (lambda x: x[1:, ::2], [M], "out = x[1:, :3:2]"),
        (lambda x: -(x**2.5), [V], "out = -x ** 2.5"),
        (lambda x: x.astype("f64") * 0.1, [V], "out = x.astype(np.float64) * 0.1"),
        (lambda x: ops.stop_gradient(x + 1) * x, [V], "out = (x + 1) * x"),
        (lambda x: ops.clip(x, -1, 1), [V], "out = np.minimum(np.maximum(x, -1), 1)"),
        (lambda x: x > 0, [V], "out = x > 0"),
        (lambda x: (x > 0) & (x < 1) | (x == 3), [V], "out = (x > 0) & (x < 1) | (x == 3)"),
    ],
)  # fmt: skip
def test_expressions_are_written_as_a_person_would(function: Any, types: list[ag.TensorType], expected: str) -> None:
    assert body(ag.capture(function, *types)) == f"    {expected}\n    return out"


def test_long_expressions_are_cut_into_steps() -> None:
    def function(x: Any) -> Any:
        parts = [x * i + 0.123456 for i in range(2, 40)]
        return sum(parts[1:], parts[0])

    text = ag.capture(function, V).python()
    lines = [line for line in body(text).splitlines() if " = " in line]
    assert max(map(len, lines)) <= 90
    assert 10 < len(lines) < 40
    assert re.search(r"t\d+ = ", text)


def test_views_between_the_parts_of_a_long_expression() -> None:
    """Transposes are written again where they are used, but do not keep an expression from being cut."""

    def function(x: Any) -> Any:
        h = [x]
        for _ in range(300):
            h[0] = (h[0] + 1.0).T
        return h[0]

    captured = ag.capture(function, M)
    assert max(map(len, body(captured).splitlines())) <= 120
    np.testing.assert_array_equal(run(captured, [np.zeros((3, 4), np.float32)], "host")[0], np.full((3, 4), 300))


def test_a_value_that_is_used_twice_has_a_line() -> None:
    def function(x: Any) -> Any:
        parts = {"e": ops.exp(x)}
        return parts["e"] * parts["e"]

    assert body(ag.capture(function, V)).splitlines() == ["    t0 = np.exp(x)", "    out = t0 * t0", "    return out"]


def test_one_line_for_each_equation() -> None:
    def function(x: Any, w: Any) -> Any:
        return ops.tanh(x @ w + 1) * 2

    lines = body(ag.capture(function, M, ag.spec((4, 2))).python(inline=False)).splitlines()
    assert [line.strip() for line in lines] == [
        "t0 = x @ w",
        "t1 = t0 + 1",
        "t2 = np.tanh(t1)",
        "out = t2 * 2",
        "return out",
    ]


@each
def test_one_line_for_each_equation_gives_the_same_bits(name: str) -> None:
    captured = program(name)
    given_arrays = [*inputs(name), *captured.captured]
    with np.errstate(all="ignore"):
        found = executed(captured.python(inline=False))(*given_arrays)
    found = found if len(captured.outputs) != 1 else (found,)
    for output, value, expected in zip(captured.output_names, found, run(captured, inputs(name), "host"), strict=True):
        assert_same_bits(np.asarray(value), expected, output)


@settings(max_examples=50)
@given(programs())
def test_random_programs_in_both_ways(drawn: Program) -> None:
    given_arrays = arrays(drawn)
    with np.errstate(all="ignore"):
        found = executed(drawn.python(inline=False))(*given_arrays)
    for name, value, expected in zip(drawn.output_names, found, run(drawn, given_arrays, "host"), strict=True):
        assert_same_bits(np.asarray(value), expected, name)


@pytest.mark.parametrize(
    ("function", "returned"),
    [
        (lambda x: None, "return ()"),
        (lambda x: x, "return x"),
        (lambda x: (x, x), "return x, x"),
        (lambda x: ops.sort(x), "out, = sort((x,), axis=0)\n    return out"),
        (lambda x: [x * 2], "out = x * 2\n    return out"),
    ],
)
def test_results(function: Any, returned: str) -> None:
    assert body(ag.capture(function, V)).strip() == returned


def test_sub_programs_return_tuples_and_come_first() -> None:
    def function(xs: Any) -> Any:
        return ag.scan(lambda c, x: (c + x, None), 0.0, xs)[0]

    text = ag.capture(function, V).python()
    assert text.index("def scan(") < text.index("def step(c, x):") < text.index("def function(xs):")
    assert "return (out0,)" in text or "return (out,)" in text


def test_equal_names_of_sub_programs() -> None:
    def function(xs: Any) -> Any:
        def step(c: Any, x: Any) -> Any:
            return c * x, None

        return ag.scan(step, 1.0, xs)[0] + ag.scan(step, 2.0, xs)[0]

    captured = ag.capture(function, V)
    text = captured.python()
    assert "def step(" in text
    assert "def step_1(" in text
    assert run(captured, [np.full(3, 2, np.float32)], "host")[0] == 24


# Names that collide.


def collide(
    np: Any, x: Any, big: Any, x_helper: Any, sum: Any, lambda_: Any, pad: Any, pad_helper: Any, bfloat16: Any
) -> Any:
    zip = np + x * 2
    len = ops.pad(big, 1)
    max = ops.mul_no_nan(x_helper, sum) - lambda_
    min = pad - pad_helper
    return zip, len, max, min, bfloat16


@pytest.mark.parametrize(
    "name", ["zip", "len", "max", "np", "scan", "scan_helper", "print", "class", "bfloat16", "range"]
)
def test_names_that_python_numpy_or_the_module_have_taken(name: str) -> None:
    """For inputs, values and the function itself, which helpers must not come to call."""
    values = [np.full(3, i, np.float32) for i in range(9)]
    captured = ag.capture(collide, *values, name=name)
    np_, x, big, x_helper, total, lambda_, pad, pad_helper, bfloat16 = values
    expected = [np_ + x * 2, np.pad(big, 1), x_helper * total - lambda_, pad - pad_helper, bfloat16]
    for value, wanted in zip(run(captured, values, "host"), expected, strict=True):
        np.testing.assert_array_equal(value, wanted)
    assert captured.input_names[0] == "np"

    def looped(xs: Any) -> Any:
        return ag.scan(lambda c, x: (c + x, ops.pad(x.reshape(1), 1)), 0.0, xs)

    looped.__name__ = name
    total, rows = run(ag.capture(looped, V), [values[1]], "host")
    assert total == 3
    assert rows.shape == (3, 3)


def test_a_file_called_bfloat16_needs_no_ml_dtypes() -> None:
    scope: dict[str, Any] = {}
    exec(compile("def f(x):\n    return x * 2\n", "/home/user/bfloat16.py", "exec"), scope)
    text = ag.capture(scope["f"], V).python()
    assert "bfloat16.py:2" in text
    assert "ml_dtypes" not in text


# It runs alone.

ALONE = '''
import importlib.abc, pathlib, runpy, sys

class Only(importlib.abc.MetaPathFinder):
    """No module but those of Python, of NumPy, and what is named on the command line."""

    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in ALLOWED and top not in sys.stdlib_module_names:
            raise ImportError(f"{name} is not to be had here")

ALLOWED = {"numpy", *sys.argv[2:]}
sys.meta_path.insert(0, Only())
import numpy as np

np.seterr(all="ignore")
for folder in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    module = runpy.run_path(str(folder / "printed.py"))
    function = [value for value in module.values() if callable(value) and hasattr(value, "__code__")][-1]
    given = np.load(folder / "given.npz")
    types = (folder / "types").read_text().split()
    arrays = [given[str(i)].view(module.get("bfloat16", "V2") if t == "bfloat16" else t) for i, t in enumerate(types)]
    found = function(*arrays)
    found = found if isinstance(found, tuple) else (found,)
    np.savez(folder / "found.npz", *(np.frombuffer(np.asarray(f).tobytes(), np.uint8) for f in found))
    (folder / "shapes").write_text(repr([(str(np.asarray(f).dtype), np.shape(f)) for f in found]))
'''


def run_alone(tmp_path: Path, names: list[str], *allowed: str) -> None:
    """The printed modules in a Python that can import nothing else, against the host device, bit for bit."""
    for name in names:
        folder = tmp_path / name
        folder.mkdir()
        given_arrays = [*inputs(name), *program(name).captured]
        (folder / "printed.py").write_text(program(name).python(), encoding="utf-8")
        (folder / "types").write_text(" ".join(str(a.dtype) for a in given_arrays))
        plain = [a.view(np.uint16) if a.dtype == ml_dtypes.bfloat16 else a for a in given_arrays]
        np.savez(folder / "given.npz", **{str(i): a for i, a in enumerate(plain)})
    command = [sys.executable, "-I", "-W", "error", "-c", ALONE, str(tmp_path), *allowed]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in names:
        expected = run(program(name), inputs(name), "host")
        shapes = ast.literal_eval((tmp_path / name / "shapes").read_text())
        assert shapes == [(str(e.dtype), e.shape) for e in expected], name
        found = np.load(tmp_path / name / "found.npz")
        for i, array in enumerate(expected):
            assert found[f"arr_{i}"].tobytes() == array.tobytes(), f"{name}, {program(name).output_names[i]}"


def test_modules_run_where_only_numpy_is(tmp_path: Path) -> None:
    run_alone(tmp_path, [name for name in PROGRAMS if "bf16" not in name and name != "nothing"])


def test_modules_with_bfloat16_need_ml_dtypes_as_well(tmp_path: Path) -> None:
    names = [name for name in PROGRAMS if "bf16" in name]
    for folder in ("with", "without"):
        (tmp_path / folder).mkdir()
    run_alone(tmp_path / "with", names, "ml_dtypes")
    with pytest.raises(AssertionError, match="ml_dtypes is not to be had here"):
        run_alone(tmp_path / "without", names)


@each
def test_imports(name: str) -> None:
    imported = [
        node for node in ast.walk(ast.parse(program(name).python())) if isinstance(node, (ast.Import, ast.ImportFrom))
    ]
    expected = ["import numpy as np", *(["from ml_dtypes import bfloat16"] if "bf16" in name else [])]
    assert [ast.unparse(node) for node in imported] == expected


# Stepping and blame.


def hidden(x: Any, w: Any) -> Any:
    first = ops.exp(x)
    second = ops.tanh(first @ w)
    return second.sum()


def test_a_traceback_shows_the_printed_line(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = ag.capture(hidden, M, ag.spec((4, 2)))
    given_arrays = [np.ones((3, 4), np.float32), np.ones((4, 2), np.float32)]
    run(captured, given_arrays, "host")

    def fails(x: Any) -> Any:
        raise ArithmeticError("no tanh today")

    monkeypatch.setattr(np, "tanh", fails)
    with pytest.raises(ArithmeticError) as error:
        run(captured, given_arrays, "host")
    text = "".join(traceback.format_exception(error.value))
    assert "second = np.tanh(first @ w)" in text
    assert re.search(r'File "<antegrad hidden \d+>", line \d+, in hidden', text)


def test_a_debugger_can_step_through_the_lines() -> None:
    """What a debugger sees: a line event for each printed line, and the text of that line by `linecache`."""
    captured = ag.capture(hidden, M, ag.spec((4, 2)))
    function = host.function(captured)
    seen: list[str] = []

    def trace(frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code is function.__code__ and event == "line":
            linecache.checkcache(frame.f_code.co_filename)
            seen.append(linecache.getline(frame.f_code.co_filename, frame.f_lineno).split(" #")[0].strip())
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function(np.ones((3, 4), np.float32), np.ones((4, 2), np.float32))
    finally:
        sys.settrace(before)
    assert seen == ["first = np.exp(x)", "second = np.tanh(first @ w)", "out = second.sum()", "return out"]


def test_the_host_runs_the_very_text_that_is_printed() -> None:
    captured = program("attention")
    filename = host.function(captured).__code__.co_filename
    assert "".join(linecache.getlines(filename)) == captured.python()


def test_the_text_of_a_program_that_is_gone_is_let_go() -> None:
    captured = ag.capture(lambda x: x * 3, V)
    filename = host.function(captured).__code__.co_filename
    assert filename in linecache.cache
    del captured
    gc.collect()
    assert filename not in linecache.cache
