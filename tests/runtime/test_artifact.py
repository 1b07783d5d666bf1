"""Programs outside of antegrad: in a JAX program, through `jax.export`, and as a portable artifact."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import antegrad as ag
from antegrad import ops
from antegrad.errors import DTypeError, ShapeError
from antegrad.runtime.artifact import as_jax, exported, portable

X = np.linspace(-1, 1, 100, dtype=np.float32)
TABLE = np.arange(100, dtype=np.float32)


def wave(d: Any) -> Any:
    return {"y": ops.sin(d["x"]) * TABLE, "total": ops.sum(d["x"] * d["x"])}


PROGRAM = ag.capture(wave, {"x": X})


def test_a_program_inside_a_program_of_jax() -> None:
    function = PROGRAM.as_jax()
    expected = PROGRAM.run({"x": 2 * X}, device="cpu")
    found = jax.jit(lambda x: jax.tree.map(lambda a: a * 2, function({"x": x * 2})))(X)
    assert found["y"].tolist() == (expected["y"] * 2).tolist()
    assert function({"x": 2 * X})["y"].tolist() == expected["y"].tolist()
    twice = jax.jit(lambda x: function({"x": function({"x": x})["y"]})["total"])
    assert twice(X) > 0


def test_types_are_checked_inside_a_program_of_jax() -> None:
    function = as_jax(PROGRAM)
    with pytest.raises(ShapeError, match=r"input x must be f32\[100\], found f32\[5\]"):
        jax.jit(lambda x: function({"x": x[:5]}))(X)
    with pytest.raises(DTypeError, match=r"input x must be f32\[100\], found f64\[100\]"):
        function({"x": X.astype(np.float64)})
    with pytest.raises(NotImplementedError, match="antegrad_program"):
        jax.grad(lambda x: function({"x": x})["total"])(X)


def test_64_bits_need_the_mode_of_jax() -> None:
    x = np.array([1 + 2**-52])
    function = as_jax(ag.capture(lambda x: x + x, x))
    with pytest.raises(DTypeError, match=r"has f64\[1\], which JAX would narrow: use jax.enable_x64"):
        function(x)
    with jax.enable_x64(True):
        assert jax.jit(function)(x).tolist() == [2 * (1 + 2**-52)]


def test_export() -> None:
    found = exported(PROGRAM, platforms=("cpu",)).call(X)
    expected = PROGRAM.run({"x": X}, device="cpu")
    assert np.asarray(found["y"]).tobytes() == expected["y"].tobytes()
    assert exported(PROGRAM).platforms == ("cpu", "cuda", "tpu")
    wide = exported(ag.capture(lambda x: x + x, np.ones(3)), platforms=("cpu",))
    assert wide.in_avals[0].dtype == np.float64


PLAIN_JAX = """
import sys, numpy as np, jax
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo

data = open(sys.argv[1], "rb").read()
call_p = Primitive("artifact")
call_p.def_abstract_eval(lambda *_: jax.core.ShapedArray((100,), np.float32))

def lower(context, *operands):
    here = context.module_context.module.context
    parsed = stablehlo.deserialize_portable_artifact(here, data) if data[:2] == b"ML" else ir.Module.parse(data)
    name = mlir.merge_mlir_modules(context.module_context.module, "artifact", parsed)
    return func.CallOp([operands[0].type], ir.FlatSymbolRefAttr.get(name), list(operands)).results

mlir.register_lowering(call_p, lower)
x = np.linspace(-1, 1, 100, dtype=np.float32)
table = np.arange(100, dtype=np.float32)
print(np.asarray(jax.jit(call_p.bind)(x, table)).tobytes().hex())
assert not [name for name in sys.modules if name.startswith("antegrad")]
"""


@pytest.mark.parametrize("form", ["text", "portable"])
def test_plain_jax_runs_it_without_antegrad(form: str, tmp_path: Path) -> None:
    program = ag.capture(lambda x: ops.sin(x) * TABLE, X)
    file = tmp_path / "program"
    file.write_bytes(portable(program) if form == "portable" else program.stablehlo().encode())
    done = subprocess.run([sys.executable, "-c", PLAIN_JAX, file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert bytes.fromhex(done.stdout.strip()) == program.run(X, device="cpu").tobytes()


def test_the_portable_artifact_is_of_an_older_version() -> None:
    from jaxlib.mlir.dialects import stablehlo

    week_12 = stablehlo.get_version_from_compatibility_requirement(stablehlo.StablehloCompatibilityRequirement.WEEK_12)
    written = portable(PROGRAM).split(b"StableHLO_v")[1][:8]
    assert written.startswith(".".join(week_12.split(".")[:2]).encode())
    assert week_12 != stablehlo.get_minimum_version()
