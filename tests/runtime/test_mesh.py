"""A mesh of several ranks: global arrays go in and come out, on the host and on four devices of XLA.

The checks are functions of a mesh. On the host they run here; on four devices in a process of their own, because JAX
has its devices from its start on. As a script, this module writes what each check raised there, or nothing.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import antegrad as ag
from antegrad import ops
from antegrad.ir.types import TensorType
from antegrad.ops.communication import all_gather, all_reduce, all_to_all, axis_index
from antegrad.runtime.mesh import Mesh, MeshExecutable

ROOT = Path(__file__).parents[2]
X = np.arange(24, dtype=np.float32).reshape(8, 3)
OUTER = np.arange(100, dtype=np.float32)
"""More elements than are embedded, so that programs capture it."""


def compiled(mesh: Mesh, function: Callable[..., Any], *examples: Any, **options: Any) -> MeshExecutable:
    """For examples of one rank's inputs; all sharded but for scalars, as are the results."""
    program = ag.capture(function, *examples, name="f")
    flags = [[bool(type.ndim) for type in types] for types in (program.input_types, program.output_types)]
    return MeshExecutable(program, mesh, flags[0][: program.argument_count], flags[1], **options)


# Checks of a mesh with four ranks


def local_ranks(mesh: Mesh) -> None:
    assert mesh.local_ranks == range(4)
    assert not mesh.spans_processes
    assert mesh.device.platform == mesh.platform


def global_types(mesh: Mesh) -> None:
    local = TensorType((2, 3), np.dtype(np.float32))
    assert mesh.global_type(local, True).shape == (8, 3)
    assert mesh.global_type(local, False) == local


def arrays_come_back(mesh: Mesh) -> None:
    for dtype in (np.float32, np.float64, np.int64, np.uint8, np.bool_, ml_dtypes.bfloat16):
        for sharded in (True, False):
            for array in (X.astype(dtype), np.asfortranarray(X.astype(dtype)), X.astype(dtype)[:, ::2]):
                placed = mesh.put(array, sharded)
                for found in (mesh.fetch(placed), mesh.own_rows(placed)):
                    assert found.dtype == dtype
                    np.testing.assert_array_equal(found, array)
    assert mesh.fetch(mesh.put(np.float64(2.5), False)) == 2.5
    assert mesh.fetch(mesh.put(np.zeros((0, 3)), True)).shape == (0, 3)


def what_is_put_is_a_copy(mesh: Mesh) -> None:
    for sharded in (True, False):
        array = X.copy()
        placed = mesh.put(array, sharded)
        array[:] = -1
        np.testing.assert_array_equal(mesh.fetch(placed), X)
        found = mesh.fetch(placed)
        found[:] = -2
        np.testing.assert_array_equal(mesh.fetch(placed), X)


def sharded_and_replicated(mesh: Mesh) -> None:
    program = ag.capture(
        lambda x, w: (x * w, all_reduce(ops.sum(x * w, 0), 4), x + axis_index(4).astype("f32")), X[:2], X[0]
    )
    run = MeshExecutable(program, mesh, [True, False], [True, False, True])
    for arguments in ((X, X[1]), (mesh.put(X, True), mesh.put(X[1], False)), (mesh.put(X, True), X[1])):
        product, total, moved = (mesh.fetch(result) for result in run(*arguments))
        np.testing.assert_array_equal(product, X * X[1])
        np.testing.assert_array_equal(total, (X * X[1]).sum(0))
        np.testing.assert_array_equal(moved, X + np.repeat(np.arange(4, dtype=np.float32), 2)[:, None])


def results_are_inputs_again(mesh: Mesh) -> None:
    program = ag.capture(lambda x, w: (x - w, all_reduce(ops.sum(x), 4) / 64), X[:2], X[0, 0])
    run = MeshExecutable(program, mesh, [True, False], [True, False])
    state, expected = [X, np.float32(1)], [X, np.float32(1)]
    for _ in range(3):
        state = run(*state)
        expected = [expected[0] - expected[1], expected[0].sum() / np.float32(64)]
    np.testing.assert_allclose(mesh.fetch(state[0]), expected[0], rtol=1e-6)
    np.testing.assert_allclose(mesh.fetch(state[1]), expected[1], rtol=1e-6)


def wide_types(mesh: Mesh) -> None:
    wide = np.arange(8) + 2**40
    (total,) = compiled(mesh, lambda x: all_reduce(x, 4), wide[:2])(wide)
    np.testing.assert_array_equal(mesh.fetch(total), np.tile(wide.reshape(4, 2).sum(0), 4))
    fine = np.linspace(0, 1, 8) * (1 + 2**-40)
    (mean,) = compiled(mesh, lambda x: all_reduce(x, 4, "mean"), fine[:2])(fine)
    parts = fine.reshape(4, 2)
    np.testing.assert_array_equal(mesh.fetch(mean), np.tile((parts[0] + parts[1] + parts[2] + parts[3]) / 4, 4))


def captured_arrays(mesh: Mesh) -> None:
    (found,) = compiled(mesh, lambda x: x * OUTER[:3] + all_gather(x, 4)[:2] * OUTER[3:6], X[:2])(X)
    np.testing.assert_array_equal(mesh.fetch(found), X * OUTER[:3] + np.tile(X[:2], (4, 1)) * OUTER[3:6])


def transposed(mesh: Mesh) -> None:
    square = np.arange(64, dtype=np.float32).reshape(8, 8)
    (found,) = compiled(mesh, lambda x: all_to_all(x, 4, 1, 0).T, square[:2])(square)
    np.testing.assert_array_equal(mesh.fetch(found), square.T)


def gradient(mesh: Mesh) -> None:
    """The gradient by a replicated weight, summed over the ranks, is that of the loss on all rows."""

    def loss(w: Any, x: Any) -> Any:
        return all_reduce(ops.mean(ops.tanh(x @ w)), 4, "mean")

    weights = np.linspace(-0.2, 0.3, 3, dtype=np.float32)
    whole = ag.grad(lambda w: ops.mean(ops.tanh(X @ w)))(weights)
    program = ag.capture(lambda w, x: all_reduce(ag.grad(loss)(w, x), 4, "mean"), weights, X[:2])
    (found,) = MeshExecutable(program, mesh, [False, True], [False])(weights, X)
    np.testing.assert_allclose(mesh.fetch(found), whole, rtol=1e-5)


def pytrees(mesh: Mesh) -> None:
    tree = {"a": mesh.fetch(mesh.put(X, True)), "b": [mesh.fetch(mesh.put(X[0], False))]}
    np.testing.assert_array_equal(tree["a"], X)
    np.testing.assert_array_equal(tree["b"][0], X[0])


def scalars_cannot_be_sharded(mesh: Mesh) -> None:
    program = ag.capture(lambda x, s: (x * s, s), X[:2], X[0, 0], name="f")
    for flags in (([True, True], [True, False]), ([True, False], [True, True])):
        with pytest.raises(ag.ShapeError, match=r"program f: a scalar cannot be sharded, found f32\[\]"):
            MeshExecutable(program, mesh, *flags)


def wrong_count(mesh: Mesh) -> None:
    run = compiled(mesh, lambda x: x + 1, X[:2])
    for arguments in ((), (X, X)):
        with pytest.raises(ag.ShapeError, match=f"program f takes 1 array .* found {len(arguments)}"):
            run(*arguments)


def donation_needs_an_output(mesh: Mesh) -> None:
    with pytest.raises(ag.ShapeError, match=r"input x \(f32\[2,3\]\) cannot be donated"):
        compiled(mesh, lambda x: ops.sum(x, 0), X[:2], donate=[0])


COMMON = [
    *(local_ranks, global_types, arrays_come_back, what_is_put_is_a_copy, sharded_and_replicated),
    *(results_are_inputs_again, wide_types, captured_arrays, transposed, gradient, pytrees),
    *(scalars_cannot_be_sharded, wrong_count, donation_needs_an_output),
]


# Checks of four devices


def donated_memory_is_used(mesh: Mesh) -> None:
    run = compiled(mesh, lambda x, y: (x + y, y * 2), X[:2], X[:2], donate=[0])
    x, y = mesh.put(X, True), mesh.put(X, True)
    total, _ = run(x, y)
    assert x.is_deleted()
    assert not y.is_deleted()
    np.testing.assert_array_equal(mesh.fetch(total), 2 * X)
    assert run.memory().alias_size_in_bytes == X[:2].nbytes


def collectives_stay_apart(mesh: Mesh) -> None:
    """XLA:CPU would combine these two all-reduces, which do not need each other."""
    run = compiled(mesh, lambda x, y: (all_reduce(x, 4), all_reduce(y, 4)), X[:2], X[:2, 0])
    assert len(re.findall(r" all-reduce(?:-start)?\(", run.hlo())) == 2
    assert run.memory().output_size_in_bytes >= X[:2].nbytes


def same_results_as_the_host(mesh: Mesh) -> None:
    def function(x: Any) -> Any:
        carry, rows = ag.scan(lambda c, row: (c + all_reduce(row * c, 4), all_gather(row, 4)), x[0] / 50, x / 50)
        return carry, rows, all_reduce(x, ((0, 3), (1, 2)), "max")

    results = [
        [each.fetch(result) for result in compiled(each, function, X[:2])(X)] for each in (mesh, Mesh(4, "host"))
    ]
    for found, expected in zip(*results, strict=True):
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def each_device_has_its_rows(mesh: Mesh) -> None:
    placed = mesh.put(X, True)
    assert [shard.data.shape for shard in placed.addressable_shards] == [(2, 3)] * 4
    for rank, shard in enumerate(placed.addressable_shards):
        assert shard.device == mesh.devices[rank]
        np.testing.assert_array_equal(shard.data, X[2 * rank : 2 * rank + 2])
    assert mesh.put(X, False).is_fully_replicated


ON_DEVICES = [donated_memory_is_used, collectives_stay_apart, same_results_as_the_host, each_device_has_its_rows]


def main(target: str) -> None:
    """Run the checks on four devices."""
    import jax

    mesh, found = Mesh(4, "cpu", tuple(jax.devices())), {}
    for check in (*COMMON, *ON_DEVICES):
        try:
            check(mesh)
            found[check.__name__] = ""
        except Exception:
            found[check.__name__] = traceback.format_exc()
    Path(target).write_text(json.dumps(found), encoding="utf-8")


@pytest.fixture(scope="module")
def on_devices(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    target = tmp_path_factory.mktemp("mesh") / "found.json"
    command = [sys.executable, "-m", "tests.runtime.test_mesh", str(target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return json.loads(target.read_text(encoding="utf-8"))


@pytest.mark.parametrize("check", COMMON, ids=lambda check: check.__name__)
def test_host(check: Callable[[Mesh], None]) -> None:
    check(Mesh(4, "host"))


@pytest.mark.parametrize("check", [*COMMON, *ON_DEVICES], ids=lambda check: check.__name__)
def test_devices(check: Callable[[Mesh], None], on_devices: dict[str, str]) -> None:
    assert not on_devices[check.__name__], on_devices[check.__name__]


def test_the_host_has_no_executable() -> None:
    run = compiled(Mesh(4, "host"), lambda x: x + 1, X[:2])
    for ask in (run.hlo, run.memory):
        with pytest.raises(ag.DeviceError, match="program f runs on the host, which has no XLA executable"):
            ask()


def test_the_host_checks_the_inputs_of_each_rank() -> None:
    run = compiled(Mesh(4, "host"), lambda x: x + 1, X[:2])
    with pytest.raises(ag.ShapeError, match=r"input x must be f32\[8,3\] over all 4 ranks, found f32\[4,3\]"):
        run(X[:4])
    with pytest.raises(ag.DTypeError, match=r"input x must be f32\[8,3\], found f64\[8,3\]"):
        run(X.astype(np.float64))


def test_a_program_for_other_ranks() -> None:
    with pytest.raises(ag.ProgramError, match="all_reduce is for 2 ranks, found 4"):
        compiled(Mesh(4, "host"), lambda x: all_reduce(x, 2), X[:2])(X)


def test_one_rank() -> None:
    mesh = Mesh(1, "host")
    (found,) = compiled(mesh, lambda x: all_reduce(x, 1) + axis_index(1).astype("f32"), X)(X)
    np.testing.assert_array_equal(found, X)


if __name__ == "__main__":
    os.environ["PJRT_NPROC"] = "8"  # each device needs a thread that may wait for the others
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 4)
    main(sys.argv[1])
