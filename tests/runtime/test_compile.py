"""`ag.compile` and `Program.run`: what is accepted, what is refused and how, and how often something is compiled."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np
import pytest

import antegrad as ag
from antegrad import ops
from antegrad.errors import AntegradError, DeviceError, DTypeError, NameMissing, ShapeError, TraceError

DEVICES = ["host", "cpu"]


def step(x: Any, w: Any, lr: Any) -> Any:
    loss = ops.mean(ops.square(ops.matmul(x, w)))
    return {"w": w - lr * ops.sum(x, 0), "loss": loss}


X, W = np.arange(8, dtype=np.float32).reshape(4, 2), np.ones(2, np.float32)
PROGRAM = ag.capture(step, X, W, 0.1)


@pytest.mark.parametrize("device", DEVICES)
def test_a_program_is_compiled_once_for_its_types(device: str) -> None:
    compiled = ag.compile(PROGRAM, device=device)
    result = compiled(X, W, np.float32(0.5))
    assert compiled.executables == 1
    assert compiled.device.name == device
    assert np.asarray(result["w"]).tolist() == [-5, -7]
    assert isinstance(result["w"], np.ndarray if device == "host" else jax.Array)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((X, W), ShapeError, r"program step takes 3 arrays \(x: f32\[4,2\], w: f32\[2\], lr: f32\[\]\), found 2"),
        ((X[:3], W, 0.1), ShapeError, r"program step: input x must be f32\[4,2\], found f32\[3,2\]"),
        ((X, W.astype("f8"), 0.1), DTypeError, r"input w must be f32\[2\], found f64\[2\].*astype\(\"float32\"\)"),
        ((X, W, np.float64(0.1)), DTypeError, r"input lr must be f32\[\], found f64\[\]"),
        ((X.astype("i4"), W, 0.1), DTypeError, r"input x must be f32\[4,2\], found i32\[4,2\]"),
        ((X, 1.0, 0.1), ShapeError, r"input w must be f32\[2\], found f32\[\]"),
        ((X, W, 1e39), DTypeError, r"input lr must be f32\[\]: 1e\+39 is too large for f32"),
        ((X, W, "fast"), DTypeError, r"input lr must be f32\[\]: no element type"),
    ],
)
def test_a_call_that_does_not_fit_is_refused(
    device: str, arguments: tuple[Any, ...], error: type[AntegradError], message: str
) -> None:
    for call in (ag.compile(PROGRAM, device=device), lambda *a: PROGRAM.run(*a, device=device)):
        with pytest.raises(error, match=message):
            call(*arguments)


@pytest.mark.parametrize("device", DEVICES)
def test_arrays_of_jax_are_checked_too(device: str) -> None:
    compiled = ag.compile(PROGRAM, device=device)
    with jax.enable_x64(True):
        wide = jax.device_put(W.astype(np.float64))
    with pytest.raises(DTypeError, match=r"input w must be f32\[2\], found f64\[2\]"):
        compiled(jax.device_put(X), wide, jax.device_put(np.float32(0.1)))
    with pytest.raises(ShapeError, match=r"input x must be f32\[4,2\], found f32\[3,2\]"):
        compiled(*map(jax.device_put, (X[:3], W, np.float32(0.1))))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["number", "numpy", "jax"])
def test_all_kinds_of_arguments_give_the_same_bits(device: str, kind: str) -> None:
    rate: Any = {"number": 0.1, "numpy": np.float32(0.1), "jax": jax.device_put(np.float32(0.1))}[kind]
    expected = PROGRAM.run(X, W, np.float32(0.1), device=device)["w"]
    found = ag.compile(PROGRAM, device=device)(jax.device_put(X), W, rate)["w"]
    assert np.asarray(found).tobytes() == expected.tobytes()


def test_numbers_for_integer_inputs_are_exact() -> None:
    program = ag.capture(lambda n, flag: (n + 1, ~flag), np.int32(0), True)
    assert [r.item() for r in program.run(2**31 - 2, False, device="cpu")] == [2**31 - 1, True]
    with pytest.raises(DTypeError, match=r"input n must be i32\[\]: 2147483648 does not fit in i32"):
        program.run(2**31, False, device="cpu")
    with pytest.raises(DTypeError, match=r"input n must be i32\[\]: 1.5 would lose its value"):
        program.run(1.5, False, device="cpu")


def test_case_compile_once(caplog: pytest.LogCaptureFixture) -> None:
    """Three epochs with a Python float as learning rate, then the batch that is left over."""
    compiled = ag.compile(step, device="cpu")
    w: Any = W
    with caplog.at_level(logging.WARNING, logger="antegrad"):
        for epoch in range(3):
            for _ in range(2):
                w = compiled(X, w, 0.1 / (epoch + 1))["w"]
            w = compiled(X, w, np.float32(0.1))["w"]
        assert compiled.executables == 1
        assert caplog.messages == []
        compiled(X[:3], w, 0.1)
    assert compiled.executables == 2
    assert caplog.messages == ["step is compiled again: argument x was f32[4,2] and is f32[3,2]"]
    assert compiled.compilations[1:] == caplog.messages
    assert compiled.program.input_types[0].shape == (3, 2)
    compiled(X, w, 0.1)
    assert compiled.executables == 2


def test_what_changed_is_said_against_the_nearest_signature() -> None:
    compiled = ag.compile(lambda d: ops.sum(d["a"]), device="cpu")
    compiled({"a": X})
    compiled({"a": X.astype(np.float64)})
    compiled({"a": X, "b": W})
    compiled({"a": X[:2], "b": W})
    compiled({"b": W, "a": X[:2]})
    assert [line.split(": ", 1)[1] for line in compiled.compilations[1:]] == [
        "argument a was f32[4,2] and is f64[4,2]",
        "argument b (f32[2]) is new",
        "argument a was f32[4,2] and is f32[2,2]",
    ]
    listed = ag.compile(lambda pair: pair[0] + pair[1], device="cpu")
    listed((W, W))
    listed([W, W])
    assert "the containers of the arguments were" in listed.compilations[1]


def test_64_bits_make_another_executable_and_stay_64_bits() -> None:
    compiled = ag.compile(lambda x: x * 3, device="cpu")
    assert compiled(W).dtype == np.float32
    assert compiled(np.array([1 + 2**-52])).tolist() == [3 * (1 + 2**-52)]
    assert compiled(np.float64(0.1)).dtype == np.float64
    assert compiled(0.1).dtype == np.float32


class Model(NamedTuple):
    w: Any
    b: Any


@pytest.mark.parametrize("device", DEVICES)
def test_pytrees_go_in_and_come_out(device: str) -> None:
    def apply(model: Any, batch: Any) -> Any:
        return Model(model.w + batch["x"], None), [model.b]

    model, batch = Model(W, X), {"x": W}
    compiled = ag.compile(ag.capture(apply, model, batch), device=device)
    for call in (compiled, ag.compile(apply, device=device)):
        out, (same,) = call(model, batch)
        assert isinstance(out, Model)
        assert out.b is None
        assert np.asarray(out.w).tolist() == [2, 2]
        assert np.asarray(same).tolist() == X.tolist()


def test_donated_arguments_of_a_function() -> None:
    def move(state: Any, gradient: Any) -> Any:
        return {name: value - gradient for name, value in state.items()}

    compiled = ag.compile(move, device="cpu", donate="state")
    state, gradient = {"a": jax.device_put(W), "b": jax.device_put(W)}, jax.device_put(W)
    compiled(state, gradient)
    assert (state["a"].is_deleted(), state["b"].is_deleted(), gradient.is_deleted()) == (True, True, False)
    with pytest.raises(NameMissing, match="move has no argument 'params'; it has state, gradient"):
        ag.compile(move, device="cpu", donate=["params"])({"a": W}, W)


def test_donation_by_prefix() -> None:
    program = ag.capture(lambda p: {k: v + 1 for k, v in p.items()}, {"0.w": W, "0.b": W, "1.w": W})
    compiled = ag.compile(program, device="cpu", donate=["0"])
    arrays = {name: jax.device_put(W) for name in ("0.w", "0.b", "1.w")}
    compiled(arrays)
    assert {name: array.is_deleted() for name, array in arrays.items()} == {"0.w": True, "0.b": True, "1.w": False}
    for name in ("2", "0."):
        with pytest.raises(NameMissing, match=rf"no input '{name}' that a caller supplies; it has 0.b, 0.w, 1.w"):
            ag.compile(program, device="cpu", donate=[name])


@pytest.mark.parametrize("device", DEVICES)
def test_captured_arrays_are_not_for_the_caller(device: str) -> None:
    table = np.arange(100, dtype=np.float32)
    program = ag.capture(lambda x: x + table, table)
    assert program.run(table, device=device)[3] == 6
    with pytest.raises(NameMissing, match="no input 'table' that a caller supplies"):
        ag.compile(program, device=device, donate=["table"])


def test_the_host_donates_nothing() -> None:
    compiled = ag.compile(PROGRAM, device="host", donate=["w"])
    w = jax.device_put(W)
    assert compiled(X, w, 0.1)["w"].shape == (2,)
    assert not w.is_deleted()
    for ask in (compiled.hlo, compiled.memory):
        with pytest.raises(DeviceError, match=r"no XLA executable: the host runs program.python\(\)"):
            ask()
    with pytest.raises(DeviceError, match="nothing has been compiled yet"):
        ag.compile(step, device="cpu").hlo()


@pytest.mark.parametrize("device", DEVICES)
def test_the_result_of_a_program_without_structure(device: str) -> None:
    loss = ag.capture(lambda x: ops.sum(x * x), W)
    gradient = ag.reverse(loss)
    assert gradient.structure is None
    assert [r.tolist() for r in gradient.run(W, device=device)] == [2, [2, 2]]
    alone = ag.simplify(ag.reverse(loss))
    assert isinstance(ag.compile(alone, device=device)(W), tuple)


@pytest.mark.parametrize("device", DEVICES)
def test_run_gives_arrays_of_numpy_that_are_the_callers_own(device: str) -> None:
    x = np.ones(4, ml_dtypes.bfloat16)
    result = ag.capture(lambda x: (x, x[:2]), x).run(x, device=device)
    for array in result:
        assert isinstance(array, np.ndarray)
        assert array.dtype == x.dtype
        array[:] = 5
    assert x.tolist() == [1, 1, 1, 1]


def test_a_compiled_function_inside_a_capture() -> None:
    table = np.arange(100, dtype=np.float32)
    compiled = ag.compile(lambda x: x + table[1], device="cpu")
    large = ag.compile(lambda x: x + table, device="cpu")
    with pytest.raises(TraceError, match="a compiled function cannot be captured"):
        ag.capture(lambda x: compiled(x), W)
    program = ag.capture(lambda x: x * np.asarray(compiled(W)) + np.asarray(large(0.5))[3], W)
    assert program.run(W).tolist() == [5.5, 5.5]
    with pytest.raises(TraceError, match="input x must be f32"):
        ag.capture(lambda x: PROGRAM.run(x, x, 0.1), W)


def test_agreement_of_the_devices_on_a_gradient(rng: np.random.Generator) -> None:
    def loss(x: Any, w0: Any, w1: Any) -> Any:
        return ops.mean(ops.square(ops.tanh(x @ w0) @ w1))

    arrays = [rng.normal(size=size).astype(np.float32) for size in ((64, 8), (8, 16), (16, 1))]
    gradient = ag.reverse(ag.capture(loss, *arrays), wrt=["w0", "w1"])
    host, cpu = (gradient.run(*arrays, device=device) for device in DEVICES)
    for one, two in zip(host, cpu, strict=True):
        assert np.abs(one - two).max() <= 1e-6 * np.abs(one).max()


@pytest.mark.parametrize("device", ["host", "cpu"])
def test_check_finite_names_the_line(device: str) -> None:
    def guarded(x: Any, y: Any) -> Any:
        root = ops.sqrt(x)
        return {"total": ops.sum(root), "log": ops.where(y > 0, ops.log(y), 0)}

    x, y = np.float32([1, 4]), np.float32([0, 1])
    compiled = ag.compile(guarded, device=device, check_finite=True, donate="x")
    given = jax.device_put(x)
    found = compiled(given, y)
    assert found["total"] == 3
    assert set(found) == {"total", "log"}
    np.testing.assert_array_equal(given, x)  # nothing is donated
    with pytest.raises(ag.NonFiniteError, match=r"NaN comes from the forward pass, root: .* = sqrt.*test_compile"):
        compiled(-x, y)
    assert compiled.executables == 1
    slope = ag.compile(ag.grad(lambda x: ops.sum(ops.sqrt(x))), device=device, check_finite=True)
    with pytest.raises(ag.NonFiniteError, match="infinity comes from the backward pass"):
        slope(y)
    unchecked = ag.compile(guarded, device=device)
    assert np.isnan(unchecked(-x, y)["total"])


def test_check_finite_of_a_program_without_floats() -> None:
    compiled = ag.compile(ag.capture(lambda x: x + 1, np.int32([1])), device="cpu", check_finite=True)
    assert np.asarray(compiled(np.int32([1]))).tolist() == [2]
    assert compiled.memory() is not None


@pytest.mark.parametrize("device", ["host", "cpu"])
def test_check_finite_of_a_program_without_outputs(device: str) -> None:
    compiled = ag.compile(ag.capture(lambda x: (), np.float32([1])), device=device, check_finite=True)
    assert compiled(np.float32([1])) == ()
