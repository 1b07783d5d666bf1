"""The XLA executable: types, placement, donation, captured arrays, threads, and what it does not keep alive."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

import antegrad as ag
from antegrad import ops
from antegrad.errors import DeviceError, ProgramError, ShapeError, TraceError
from antegrad.ir.program import Program
from antegrad.ir.types import DTYPES, TensorType, is_float
from antegrad.runtime.xla import Module, program_p
from tests.support import assert_same_bits


def values(dtype: np.dtype) -> np.ndarray:
    """The extreme values of a type, and some between."""
    if dtype.kind == "b":
        return np.array([True, False, True])
    if is_float(dtype):
        info = ml_dtypes.finfo(dtype)
        return np.array([info.max, info.min, info.eps, 1 + info.eps, -0.0, np.inf, np.nan]).astype(dtype)
    info = np.iinfo(dtype)
    return np.array([info.min, info.max, 0, 1, info.max - 1], dtype)


def identity(*arrays: Any) -> Any:
    return arrays


@pytest.mark.parametrize("name", DTYPES)
def test_each_type_goes_in_and_out_unchanged(name: str) -> None:
    array = values(DTYPES[name])
    given = [array, array[:1].reshape(()), array[:0], np.asfortranarray(np.stack([array, array[::-1]]))]
    compiled = ag.compile(ag.capture(identity, *given), device="cpu")
    first = compiled(*given)
    second = compiled(*first)
    for expected, one, two in zip(given, first, second, strict=True):
        assert isinstance(one, jax.Array)
        assert_same_bits(np.asarray(one), expected, name)
        assert_same_bits(np.asarray(two), expected, name)


@pytest.mark.parametrize("name", ["f64", "i64", "u64"])
def test_64_bits_are_exact_and_the_mode_of_jax_stays(name: str) -> None:
    x = np.array([1, 2**62 + 1], DTYPES[name]) if name != "f64" else np.array([1 + 2**-52, 1e300])
    program = ag.capture(lambda x, y: (x + y, x.astype("f32")), x, x)
    compiled = ag.compile(program, device="cpu")
    result, narrow = compiled(x, compiled(x, x)[0])
    assert (np.asarray(result) == x + (x + x)).all()
    assert narrow.dtype == np.float32
    assert jax.dtypes.canonicalize_dtype(DTYPES[name]).itemsize == 4


def test_64_bits_inside_only() -> None:
    x = np.float32(1)
    program = ag.capture(lambda x: ((x.astype("f64") + 1e-12 - 1) * 1e12).astype("f32"), x)
    assert abs(program.run(x, device="cpu") - 1) < 1e-3


def test_no_input_no_output_and_outputs_that_are_inputs() -> None:
    x = np.arange(3, dtype=np.float32)
    assert ag.compile(ag.capture(lambda: ops.arange(3)), device="cpu")().tolist() == [0, 1, 2]
    assert ag.compile(ag.capture(lambda x: (), x), device="cpu")(x) == ()
    doubled = ag.compile(ag.capture(lambda x, unused: (x, x, -x), x, x), device="cpu")
    assert [r.tolist() for r in doubled(x, x)] == [[0, 1, 2], [0, 1, 2], [0, -1, -2]]


def test_captured_arrays_are_on_the_device_once_and_private() -> None:
    table = np.arange(100, dtype=np.float32)
    compiled = ag.compile(ag.capture(lambda i: ops.take(table, i), np.int32(0)), device="cpu")
    table[:] = -1
    assert float(compiled(np.int32(7))) == 7
    assert "constant" not in compiled.program.stablehlo().split("func.func")[0]
    assert compiled.program.argument_count == 1


def aligned(count: int) -> np.ndarray:
    """An array that XLA:CPU can use without a copy."""
    raw = np.zeros(4 * count + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + 4 * count].view(np.float32)


def test_a_write_after_the_call_is_not_seen() -> None:
    """XLA:CPU runs later than the call returns, and would read the caller's memory then."""
    size = 700
    busy = np.full((size, size), 1 / size, np.float32)
    batch = aligned(256)
    batch[:] = 1
    program = ag.capture(lambda a, x: (a @ a @ a @ a)[0, 0] * 0 + x, busy, batch)
    compiled = ag.compile(program, device="cpu")
    for _ in range(3):
        batch[:] = 1
        result = compiled(busy, batch)
        batch[:] = 2
        assert (np.asarray(result) == 1).all()


def update(w: Any, m: Any, g: Any) -> Any:
    return {"w": w - 0.5 * m, "m": 0.5 * m + g}


STATE = (np.ones(8, np.float32), np.zeros(8, np.float32), np.full(8, 2, np.float32))


def put(*arrays: np.ndarray) -> list[jax.Array]:
    return [jax.device_put(array) for array in arrays]


def test_donated_inputs_are_deleted_and_their_memory_reused() -> None:
    compiled = ag.compile(ag.capture(update, *STATE), device="cpu", donate=["w", "m"])
    w, m, g = put(*STATE)
    result = compiled(w, m, g)
    assert (w.is_deleted(), m.is_deleted(), g.is_deleted()) == (True, True, False)
    assert "input_output_alias" in compiled.hlo()
    assert compiled.memory().alias_size_in_bytes == 64
    assert result["m"].tolist() == [2] * 8
    plain = ag.compile(ag.capture(update, *STATE), device="cpu")
    assert "input_output_alias" not in plain.hlo()


def test_donation_leaves_numpy_arrays_alone() -> None:
    compiled = ag.compile(ag.capture(update, *STATE), device="cpu", donate=["w", "m"])
    w, m = aligned(8), aligned(8)
    w[:], m[:] = 1, 4
    np.asarray(compiled(w, m, STATE[2])["w"])
    assert (w.tolist(), m.tolist()) == ([1] * 8, [4] * 8)


def test_a_refused_call_loses_nothing() -> None:
    compiled = ag.compile(ag.capture(update, *STATE), device="cpu", donate=["w", "m"])
    w, m, g = put(*STATE)
    for bad in (put(np.ones(9, np.float32))[0], np.ones(9, np.float32)):
        with pytest.raises(ShapeError, match=r"program update: input g must be f32\[8\], found f32\[9\]"):
            compiled(w, m, bad)
    with pytest.raises(ShapeError, match=r"takes 3 arrays \(w: f32\[8\], m: f32\[8\], g: f32\[8\]\), found 2"):
        compiled(w, m)
    assert not w.is_deleted()
    assert not m.is_deleted()
    compiled(w, m, g)


def test_a_consumed_input_is_named() -> None:
    compiled = ag.compile(ag.capture(update, *STATE), device="cpu", donate=["m"])
    w, m, g = put(*STATE)
    compiled(w, m, g)
    with pytest.raises(DeviceError, match="program update: input m has been deleted"):
        compiled(w, m, g)


def test_one_array_cannot_be_donated_and_used_twice() -> None:
    compiled = ag.compile(ag.capture(update, *STATE), device="cpu", donate=["w", "m"])
    (w,) = put(STATE[0])
    with pytest.raises(DeviceError, match="inputs w and m are one array"):
        compiled(w, w, STATE[2])
    assert not w.is_deleted()


def test_what_cannot_be_donated_is_refused() -> None:
    program = ag.capture(lambda x, y: x + ops.sum(y), np.ones(3, np.float32), np.ones(4, np.float32))
    with pytest.raises(ShapeError, match=r"input y \(f32\[4\]\) cannot be donated"):
        ag.compile(program, device="cpu", donate=["x", "y"])


def test_a_traced_value_of_jax_is_refused() -> None:
    compiled = ag.compile(ag.capture(update, *STATE), device="cpu")
    with pytest.raises(TraceError, match="input w is traced by JAX"):
        jax.jit(lambda w: compiled(w, *STATE[1:]))(STATE[0])


def test_compiler_options_reach_xla() -> None:
    program = ag.capture(update, *STATE)
    with pytest.raises(Exception, match="no_such_option"):
        ag.compile(program, device="cpu", compiler_options={"no_such_option": True})
    compiled = ag.compile(program, device="cpu", compiler_options={"xla_cpu_enable_fast_math": True})
    assert compiled(*STATE)["m"].tolist() == [2] * 8


def test_text_that_does_not_parse_names_the_program() -> None:
    module = Module("broken", "module @broken { nonsense }", (TensorType((), DTYPES["f32"]),))
    with pytest.raises(ProgramError, match="program broken: its StableHLO text does not parse"):
        jax.jit(lambda: program_p.bind(module=module)).lower()


def test_calls_from_several_threads() -> None:
    compiled = ag.compile(ag.capture(update, *STATE), device="cpu")
    function = ag.compile(update, device="cpu")

    def work(number: int) -> bool:
        g = np.full(8, number, np.float32)
        results = [compiled(STATE[0], STATE[1], g)["m"], function(STATE[0], STATE[1], g)["m"]]
        results.append(compiled.program.run(STATE[0], STATE[1], g, device="cpu")["m"])
        return all(np.asarray(result).tolist() == [number] * 8 for result in results)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(64)))
    assert function.executables == 1


def test_no_cache_keeps_a_program_alive() -> None:
    table = np.arange(100, dtype=np.float32)

    def made() -> weakref.ref[Program]:
        program = ag.capture(lambda x: x + table[:3], np.ones(3, np.float32))
        program.run(np.ones(3, np.float32), device="cpu")
        program.run(np.ones(3, np.float32), device="host")
        ag.compile(program, device="cpu")(np.ones(3, np.float32))
        return weakref.ref(program)

    program = made()
    gc.collect()
    assert program() is None


PLACES = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import jax, numpy as np, antegrad as ag
x = np.ones(3, np.float32)
assert [d.name for d in ag.devices()] == ["host", "cpu:0", "cpu:1"], ag.devices()
program = ag.capture(lambda x: x + 1, x)
compiled = ag.compile(program, device="cpu:1")
result = compiled(x)
assert result.devices() == {jax.devices()[1]}
assert compiled(result).tolist() == [3, 3, 3]
assert ag.compile(lambda: ag.ops.arange(3), device="cpu:1")().devices() == {jax.devices()[1]}
elsewhere = jax.device_put(x, jax.devices()[0])
assert program.run(elsewhere, device="cpu:1").tolist() == [2, 2, 2]
assert ag.compile(program).device.name == "cpu:0"
try:
    compiled(elsewhere)
except ag.DeviceError as error:
    print(error)
"""


def test_a_second_device_of_a_platform() -> None:
    done = subprocess.run([sys.executable, "-c", PLACES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "is compiled for cpu:1" in done.stdout
    assert "and input x lies on " in done.stdout


def test_roundings_to_bf16_are_made() -> None:
    """XLA may otherwise keep the digits of a product that the next step widens again."""
    x = np.random.default_rng(0).normal(size=64).astype(ml_dtypes.bfloat16)
    program = ag.capture(lambda x: (x * x).astype("f32"), x)
    np.testing.assert_array_equal(program.run(x, device="cpu"), program.run(x, device="host"))
