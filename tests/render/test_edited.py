"""`from_python`: printed modules come back as the programs they are, and edits change just what they say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import antegrad as ag
from antegrad import ops
from antegrad.ir.program import Program
from tests.passes.programs import arrays, programs
from tests.render.programs import NAMES, PROGRAMS, inputs, program
from tests.support import assert_same_bits, devices, run

V, M = ag.spec((3,)), ag.spec((3, 4))
ALL = [name for name in PROGRAMS if name != "nothing"]
each = pytest.mark.parametrize("name", ALL)


def all_inputs(name: str) -> list[np.ndarray]:
    """With the captured arrays, which are inputs like any other when a module comes back."""
    return [*inputs(name), *program(name).captured]


def edited(text: str, old: str, new: str) -> str:
    """The text with one place changed."""
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in\n{text}"
    return text.replace(old, new)


@each
def test_the_unedited_module_gives_the_same_bits(name: str) -> None:
    again = ag.from_python(program(name).python())
    found = run(again, all_inputs(name), "host")
    for output, value, expected in zip(
        again.output_names, found, run(program(name), inputs(name), "host"), strict=True
    ):
        assert_same_bits(value, expected, output)


@each
def test_the_unedited_module_compiles_to_the_same_results(name: str) -> None:
    """On XLA, from the same text or from one with the same results."""
    again = ag.from_python(program(name).python())
    if again.stablehlo() == program(name).stablehlo() or "cpu" not in devices():
        return
    found, expected = run(again, all_inputs(name), "cpu"), run(program(name), inputs(name), "cpu")
    for output, a, b in zip(again.output_names, found, expected, strict=True):
        tolerance = 1e-2 if a.dtype.itemsize == 2 else 2e-6
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), tolerance, tolerance, err_msg=output)


@pytest.mark.parametrize("name", ["disc", "recurrent", "attention", "model", "captured"])
def test_the_module_comes_back_as_the_same_text(name: str) -> None:
    """Printed again, it differs at most in where the lines come from."""
    text = ag.simplify(ag.from_python(program(name).python())).python()

    def code(text: str) -> list[str]:
        return [line.split("  #")[0].rstrip() for line in text.splitlines() if not line.strip().startswith("#")]

    without_notes = [line.replace("  (captured)", "") for line in code(program(name).python())]
    assert code(text) == without_notes


@each
def test_names_come_back(name: str) -> None:
    again = ag.from_python(program(name).python())
    assert again.input_names == program(name).input_names
    assert again.output_names == program(name).output_names
    assert again.input_types == program(name).input_types
    assert again.output_types == program(name).output_types


@settings(max_examples=60)
@given(programs())
def test_random_programs_come_back(drawn: Program) -> None:
    given_arrays = arrays(drawn)
    again = ag.from_python(drawn.python())
    found, expected = run(again, given_arrays, "host"), run(drawn, given_arrays, "host")
    for name, value, wanted in zip(drawn.output_names, found, expected, strict=True):
        assert_same_bits(value, wanted, name)


def test_an_edit_changes_just_that_output(tmp_path: Path) -> None:
    """One bias gradient doubled, in a file, on every device."""
    path = tmp_path / "gradient.py"
    text = edited(program("disc").python(), "d_b2 = d_h1.sum(axis=0)", "d_b2 = 2 * d_h1.sum(axis=0)")
    path.write_text(text, encoding="utf-8")
    changed = ag.from_python(path)
    assert changed.output_names == ("loss", *(f"d_{name}" for name in NAMES))
    for device in devices():
        before, after = (run(p, inputs("disc"), device) for p in (program("disc"), ag.simplify(changed)))
        for name, old, new in zip(changed.output_names, before, after, strict=True):
            expected = old * 2 if name == "d_2.b" else old
            if device == "host":
                assert_same_bits(new, expected, name)
            np.testing.assert_allclose(new, expected, rtol=1e-5, atol=1e-7, err_msg=f"{name} on {device}")


def test_a_path_as_text(tmp_path: Path) -> None:
    path = tmp_path / "printed.py"
    path.write_text(program("disc").python(), encoding="utf-8")
    assert ag.from_python(str(path)).input_names == program("disc").input_names
    with pytest.raises(FileNotFoundError):
        ag.from_python(str(tmp_path / "missing.py"))


def test_an_edited_program_can_be_differentiated() -> None:
    text = edited(ag.capture(lambda x: ops.sum(ops.tanh(x)), V).python(), "np.tanh(x)", "np.sin(x * 2)")
    gradient = ag.reverse(ag.from_python(text))
    x = np.array([0.1, 0.2, 0.3], np.float32)
    np.testing.assert_allclose(run(gradient, [x], "host")[1], 2 * np.cos(2 * x), rtol=1e-6)


def test_a_line_added_with_a_name_of_its_own() -> None:
    text = ag.capture(lambda x: ops.sum(x * x), V).python()
    new = edited(text, "    out = (x * x).sum()", "    half = x * 0.5\n    out = (half * x).sum()")
    program = ag.from_python(new)
    assert "half" in str(program)
    assert run(program, [np.full(3, 2, np.float32)], "host")[0] == 6


def test_an_edited_helper_is_traced() -> None:
    text = ag.capture(ops.sigmoid, V).python()
    assert [eq.primitive.name for eq in ag.from_python(text).equations] == ["sigmoid"]
    changed = ag.from_python(edited(text, "small = np.exp(-np.abs(x))", "small = np.exp(-2 * np.abs(x))"))
    assert "exp" in [eq.primitive.name for eq in changed.equations]
    x = np.array([-1.0, 0.0, 2.0], np.float32)
    for device in devices():
        np.testing.assert_allclose(run(changed, [x], device)[0], 1 / (1 + np.exp(-2 * x)), rtol=1e-6)


def test_an_edited_scan_helper_is_unrolled() -> None:
    """Python's own loop over traced tensors; the edit leaves out the last step."""
    text = ag.capture(lambda xs: ag.scan(lambda c, x: (c + x, c), 0.0, xs)[0], V).python()
    changed = ag.from_python(edited(text, "steps = range(length)", "steps = range(length - 1)"))
    assert not any(eq.programs for eq in changed.equations)
    assert run(changed, [np.array([1, 2, 4], np.float32)], "host")[0] == 3


def test_a_body_that_is_edited_stays_a_loop() -> None:
    def step(c: Any, x: Any) -> Any:
        return c + x, c * x

    text = ag.capture(lambda xs: ag.scan(step, 0.0, xs), V).python()
    changed = ag.from_python(edited(text, "c * x", "c - x"))
    (scan,) = [eq for eq in changed.equations if eq.programs]
    assert scan.params["length"] == 3
    final, ys = run(changed, [np.array([1, 2, 4], np.float32)], "host")
    assert final == 7
    np.testing.assert_array_equal(ys, [-1, -1, -1])


def test_loops_and_branches_stay_loops_and_branches() -> None:
    kinds = [eq.primitive.name for eq in ag.from_python(program("branches").python()).equations if eq.programs]
    assert sorted(kinds) == ["cond", "cond", "scan", "while"]
    again = ag.from_python(program("recurrent").python())
    assert [eq.params["length"] for eq in again.equations if eq.primitive.name == "scan"] == [5, 5]
    assert len(list(again.all_equations())) <= len(list(program("recurrent").all_equations())) + 4


def test_nested_loops_come_back() -> None:
    def outer(c: Any, x: Any) -> Any:
        total, ys = ag.scan(lambda t, y: (ops.sin(t * y) + c, t), x, ops.stack([x, c]))
        return ag.cond(total > 0, lambda: total, lambda: total * x), ys.sum()

    captured = ag.capture(lambda xs: ag.scan(outer, 0.5, xs), V)
    again = ag.from_python(captured.python())
    x = np.array([0.3, -0.8, 0.9], np.float32)
    for a, b in zip(run(again, [x], "host"), run(captured, [x], "host"), strict=True):
        assert_same_bits(a, b, "nested")


def test_captured_arrays_become_inputs() -> None:
    again = ag.from_python(program("captured").python())
    assert again.input_names == ("x", "TABLE")
    assert again.argument_count == 2
    x, table = all_inputs("captured")
    assert_same_bits(again.run(x, table * 2, device="host"), (x @ (table * 2) + again_small()), "another table")


def again_small() -> np.ndarray:
    return np.linspace(-1, 1, 30).astype(np.float32)


def test_large_fills_are_no_data() -> None:
    """What the text makes from nothing is an equation, however large, and no input."""

    def function(x: Any) -> Any:
        zeros = ops.zeros((50, 3))
        table = ops.broadcast_to(np.array([1.0, 2.0, 3.0], np.float32), (50, 3))
        return ops.concatenate([zeros, table, ops.full((50, 3), 0.5)]) * x, ops.eye(20)

    again = ag.from_python(ag.capture(function, V).python())
    assert again.input_names == ("x",)
    assert max(eq.params["value"].size for eq in again.equations if eq.primitive.name == "constant") <= 3


def test_whole_exponents_stay_what_they_are() -> None:
    """`x ** 3.0` is a power and no product: another function with other bits."""
    x = np.linspace(0.1, 3, 50).astype(np.float32)
    for exponent in (2.0, 3.0, -1.0, 0.5, 5):
        captured = ag.capture(lambda x, e=exponent: x**e, x)
        again = ag.from_python(captured.python())
        assert [eq.primitive.name for eq in again.equations] == [eq.primitive.name for eq in captured.equations]
        assert_same_bits(run(again, [x], "host")[0], run(captured, [x], "host")[0], str(exponent))


# What is refused.

RIGHT = ag.capture(lambda x, w: ops.tanh(x @ w), M, ag.spec((4, 2)), name="net").python()


def test_text_without_a_function() -> None:
    with pytest.raises(
        ag.ProgramError, match=r"<edited program> defines no function: expected the text that program\.python\(\)"
    ):
        ag.from_python("import numpy as np\nx = 1\n")


def test_a_function_without_types() -> None:
    with pytest.raises(
        ag.ProgramError, match=r"the docstring of net gives no type for x, w; expected lines such as 'x: f32"
    ):
        ag.from_python("def net(x, w):\n    return x @ w\n")
    with pytest.raises(ag.ProgramError, match="no type for w"):
        ag.from_python(edited(RIGHT, "        w: f32[4,2]\n", ""))


def test_an_unknown_type_in_the_docstring() -> None:
    with pytest.raises(ag.DTypeError, match="no element type 'f31'"):
        ag.from_python(edited(RIGHT, "w: f32[4,2]", "w: f31[4,2]"))


def test_a_syntax_error_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text(edited(RIGHT, "np.tanh(x @ w)", "np.tanh(x @@ w)"), encoding="utf-8")
    with pytest.raises(SyntaxError) as error:
        ag.from_python(path)
    assert error.value.filename == str(path)
    assert "x @@ w" in (error.value.text or "")


@pytest.mark.parametrize(
    ("new", "error", "message"),
    [
        ("np.tanh(w @ x)", ag.ShapeError, "matmul of"),
        ("np.tanh(x @ w + unknown)", ag.ProgramError, "NameError in the edited text: name 'unknown' is not defined"),
        ("x + np.random.randn(3, 2)", ag.TraceError, r"np\.random would draw once, while the text is read"),
        ("x @ w + np.zeros(2)", ag.DTypeError, r"np\.zeros without a type would have 64 bits.*dtype=np\.float32"),
        ("x @ w + np.full((2,), 2.0)", ag.DTypeError, r"np\.full without a type"),
        ("x @ w + np.array([1.0, 2.0])", ag.DTypeError, r"np\.array without a type"),
        ("x @ w + np.arange(2)", ag.DTypeError, r"np\.arange without a type"),
        ("np.tanh(x @ w)[0]", ag.ProgramError, r"net returns f32\[2\], and its docstring says out: f32\[3,2\]: if"),
        ("(x @ w, w)", ag.ProgramError, r"net returns f32\[3,2\], f32\[4,2\], and its docstring says out: f32\[3,2\]"),
        ("np.cumsum(np.frexp(x)[0])", ag.TraceError, "np.frexp on a traced tensor"),
        ("float(x.sum())", ag.TraceError, r"used as float\(\)"),
        ("x.astype(np.int32) + x", ag.DTypeError, "keeps every bit"),
    ],
)  # fmt: skip
def test_an_edit_that_cannot_be_traced_names_the_line(
    tmp_path: Path, new: str, error: type[Exception], message: str
) -> None:
    path = tmp_path / "edited.py"
    text = edited(RIGHT, "np.tanh(x @ w)", new)
    path.write_text(text, encoding="utf-8")
    with pytest.raises(error, match=message) as raised:
        ag.from_python(path)
    of = "def net" if "docstring" in message else new
    line = next(number for number, line in enumerate(text.splitlines(), 1) if of in line)
    assert f"{path}:{line}" in str(raised.value)


def test_arrays_are_made_as_numpy_makes_them() -> None:
    """By position or by name, with a type of NumPy or its name; the text alone gives the same."""
    made = "np.ones((3, 2), dtype='float32') + np.arange(1, 5, 2, dtype=np.float32) + np.array([1, 2], np.float32)"
    text = edited(RIGHT, "np.tanh(x @ w)", f"x @ w + {made} + np.full(fill_value=2.0, shape=(2,), dtype=np.float32)")
    namespace: dict[str, Any] = {}
    exec(text, namespace)
    x, w = np.ones((3, 4), np.float32), np.full((4, 2), 0.5, np.float32)
    assert_same_bits(run(ag.from_python(text), [x, w], "host")[0], namespace["net"](x, w), "out")


def test_another_shape_in_the_docstring_is_another_program() -> None:
    """The batch of a printed program can be changed by hand, as long as the text names no size."""
    again = ag.from_python(edited(edited(RIGHT, "x: f32[3,4]", "x: f32[7,4]"), "out: f32[3,2]", "out: f32[7,2]"))
    assert str(again.output_types[0]) == "f32[7,2]"


def test_a_program_with_names_that_are_no_identifiers() -> None:
    captured = ag.capture(lambda p: {"a b": p["lambda"] + p["x.y"]}, {"lambda": V, "x.y": V})
    again = ag.from_python(captured.python())
    assert again.input_names == ("lambda", "x.y")
    assert again.output_names == ("a b",)
    assert re.search(r"lambda_: f32\[3\]  \(lambda\)", captured.python())
