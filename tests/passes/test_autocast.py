"""Mixed precision as a pass: where bf16 begins and ends, and what it costs and saves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import antegrad as ag
from antegrad import losses, nn, ops, random
from antegrad.ir.program import Program
from antegrad.ir.types import BF16, DTYPES
from antegrad.ops.fused import standardize_p
from antegrad.passes.autocast import autocast
from tests.support import devices, run

F32 = DTYPES["f32"]
MLP = nn.Sequential(
    nn.Dense(16, 64, key=random.key(0)), nn.relu, nn.Dense(64, 64, key=random.key(1)), ops.gelu,
    nn.Dense(64, 10, key=random.key(2)),
)  # fmt: skip
X, Y = ag.spec((32, 16)), ag.spec((32,), "i32")


def mlp_loss() -> Program:
    return ag.capture(lambda model, x, y: losses.cross_entropy(model(x), y), MLP, X, Y)


def types_of(program: Program, primitive: str) -> set[np.dtype]:
    """The element types of the operands and results of one primitive."""
    equations = [e for e in program.all_equations() if e.primitive.name == primitive]
    return {v.type.dtype for e in equations for v in (*e.inputs, *e.outputs) if v.type.dtype.kind != "i"}


def test_inputs_and_outputs_keep_their_types() -> None:
    before, after = mlp_loss(), autocast(mlp_loss())
    assert after.input_types == before.input_types
    assert after.output_types == before.output_types
    assert (after.input_names, after.output_names) == (before.input_names, before.output_names)


def test_products_are_bf16_and_the_loss_is_f32() -> None:
    program = autocast(mlp_loss())
    assert types_of(program, "dot_general") == {BF16}
    assert types_of(program, "relu") == {BF16}
    for name in ("exp", "log", "reduce_sum", "divide"):
        assert types_of(program, name) == {F32}, name


def test_the_gradient_has_f32_parameters_and_bf16_products() -> None:
    gradient = ag.reverse(autocast(mlp_loss()), ["0", "2", "4"])
    assert all(type.dtype == F32 for type in gradient.output_types)
    assert types_of(gradient, "dot_general") == {BF16}


def test_softmax_norms_and_gelu_take_and_give_bf16_and_are_f32_inside() -> None:
    """One rounding of a result that is computed in f32: what a chain of operations in bf16 does not give."""
    norm = nn.LayerNorm(8)

    def attention(q: Any, k: Any, v: Any) -> Any:
        return ops.gelu(norm(ops.softmax(q @ k.T) @ v)) @ v

    square = ag.spec((8, 8))
    program = autocast(ag.capture(attention, square, square, square))
    names = ("softmax", "gelu", "dot_general")
    assert all(types_of(program, name) == {BF16} for name in names)
    x = (np.random.default_rng(0).standard_normal((64, 64)) * 4).astype(BF16)
    for operation in (ops.softmax, ops.gelu, lambda x: standardize_p(x, (1,), 1e-5)[0]):
        exact = np.asarray(operation(x.astype(np.float32)))
        for device in devices():
            (found,) = run(ag.capture(operation, x), [x], device)
            assert found.dtype == BF16
            np.testing.assert_allclose(found.astype(np.float32), exact, rtol=2**-8, atol=1e-37, err_msg=device)


def test_what_is_not_in_a_primitive_of_its_own_sums_in_f32() -> None:
    def centred(x: Any, w: Any) -> Any:
        h = x @ w
        return ops.exp(h - ops.mean(h, -1, keepdims=True))

    program = autocast(ag.capture(centred, ag.spec((8, 8)), ag.spec((8, 8))))
    # The difference from the mean would lose digits in bf16.
    assert types_of(program, "subtract") == types_of(program, "exp") == types_of(program, "reduce_sum") == {F32}


def test_casts_stand_only_at_boundaries() -> None:
    """No value is cast twice, and none there and back."""
    for program in (autocast(mlp_loss()), ag.reverse(autocast(mlp_loss()), ["0", "2", "4"])):
        casts = [e for e in program.equations if e.primitive.name == "convert"]
        sources = [(e.inputs[0], e.params["dtype"]) for e in casts]
        assert len(sources) == len(set(sources))
        made = {e.outputs[0]: e.inputs[0].type.dtype for e in casts}
        assert not [e for e in casts if made.get(e.inputs[0]) == e.params["dtype"] == BF16]


def test_a_program_without_products_is_left_alone() -> None:
    program = ag.simplify(ag.capture(lambda x: ops.sum(ops.exp(x) * 2), ag.spec((3,))))
    assert str(autocast(program)) == str(program)


def test_f64_and_integers_are_left_alone() -> None:
    program = ag.simplify(ag.capture(lambda x, i: (x @ x, i @ i), ag.spec((3, 3), "f64"), ag.spec((3, 3), "i32")))
    assert types_of(autocast(program), "convert") == set()


def test_loops_are_cast_inside() -> None:
    def repeated(x: Any, w: Any) -> Any:
        return ag.scan(lambda c, _: (ops.tanh(c @ w), None), x, length=4)[0]

    program = autocast(ag.capture(repeated, ag.spec((8, 16)), ag.spec((16, 16))))
    assert types_of(program, "dot_general") == {BF16}
    x, w = np.ones((8, 16), np.float32) / 8, np.eye(16, dtype=np.float32)
    expected = run(ag.capture(repeated, x, w), [x, w], "host")[0]
    for device in devices():
        np.testing.assert_allclose(run(program, [x, w], device)[0], expected, rtol=0.02, err_msg=device)


ROUNDED = 0.06
"""Allowed error of a gradient, relative: torch's autocast is off by up to 0.055 on this network with these numbers."""


@pytest.mark.parametrize("device", devices())
def test_values_are_within_bf16(device: str) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((32, 16)).astype(np.float32), rng.integers(0, 10, 32).astype(np.int32)
    exact = ag.reverse(mlp_loss(), ["0", "2", "4"])
    rounded = ag.reverse(autocast(mlp_loss()), ["0", "2", "4"])
    leaves = [np.asarray(leaf) for leaf in MLP.named_parameters().values()]
    expected, found = (run(program, [*leaves, x, y], device) for program in (exact, rounded))
    assert found[0] == pytest.approx(float(expected[0]), rel=0.01)
    for name, a, b in zip(exact.output_names[1:], found[1:], expected[1:], strict=True):
        assert np.linalg.norm(a - b) <= ROUNDED * np.linalg.norm(b), name
    assert any((a != b).any() for a, b in zip(found, expected, strict=True))


def test_host_and_cpu_agree_on_the_cast_program() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((32, 16)).astype(np.float32), rng.integers(0, 10, 32).astype(np.int32)
    leaves = [np.asarray(leaf) for leaf in MLP.named_parameters().values()]
    host, cpu = (run(autocast(mlp_loss()), [*leaves, x, y], device)[0] for device in devices())
    assert cpu == pytest.approx(float(host), rel=2e-3)


def test_activation_bytes_fall() -> None:
    """What is kept for the backward pass, parameters and their rounded copies aside."""

    def kept(program: Program) -> int:
        report = ag.residuals(lambda *xs: program(*xs), *program.input_types)
        sizes = {type.shape for type in program.input_types}
        return sum(row.bytes for row in report.rows if row.origin != "input" and row.type.shape not in sizes)

    def wide_loss() -> Program:
        layers = (nn.Dense(64, 64, key=random.key(i)) if i % 2 == 0 else nn.relu for i in range(8))
        model = nn.Sequential(*layers)
        return ag.capture(lambda model, x: ops.mean(ops.square(model(x))), model, ag.spec((256, 64)))

    before, after = kept(ag.simplify(wide_loss())), kept(autocast(wide_loss()))
    assert after <= 0.6 * before, (before, after)


def gpt(rolled: bool, remat: str | None = None) -> nn.Module:
    """Blocks of a transformer, in a row or as a loop."""

    def block(key: Any) -> nn.Module:
        return nn.TransformerBlock(32, 2, key=key, causal=True)

    return nn.Repeat(block, 4, key=random.key(0), unroll=not rolled, remat=remat)


def kept_bytes(program: Program) -> int:
    """What the backward pass needs, but for the inputs."""
    report = ag.residuals(lambda *xs: program(*xs), *program.input_types)
    return sum(row.bytes for row in report.rows if row.origin != "input")


@pytest.mark.parametrize("remat", [None, "nothing", "dots"])
def test_what_a_loop_carries_is_bf16_between_layers(remat: str | None) -> None:
    def loss(model: nn.Module, x: Any) -> Any:
        return ops.mean(model(x))

    wide = ag.capture(loss, gpt(True, remat), ag.spec((256, 16, 32)))
    program = autocast(wide)
    (loop,) = (e for e in program.equations if e.primitive.name == "scan")
    constants, both = loop.params["counts"][0], sum(loop.params["counts"])
    assert [value.type.dtype for value in loop.inputs[constants:both]] == [BF16]
    assert kept_bytes(program) < 0.6 * kept_bytes(wide)


@pytest.mark.parametrize("rolled", [True, False])
def test_a_loop_of_layers_has_the_values_of_layers_in_a_row(rolled: bool) -> None:
    """With gradients, within the rounding of bf16 of the f32 ones."""
    x = np.random.default_rng(0).standard_normal((4, 8, 32)).astype(np.float32)
    model = gpt(rolled)

    def loss(model: nn.Module, x: Any) -> Any:
        return ops.mean(ops.square(model(x)))

    program = ag.capture(loss, model, x)
    wanted = list(program.input_names[:-1])
    leaves = [*map(np.asarray, model.named_parameters().values()), x]
    exact, rounded = (run(ag.reverse(p, wanted), leaves, "cpu") for p in (program, autocast(program)))
    assert rounded[0] == pytest.approx(float(exact[0]), rel=0.01)
    largest = max(np.linalg.norm(b) for b in exact[1:])  # the gradient of a key's bias is 0
    for name, a, b in zip(wanted, rounded[1:], exact[1:], strict=True):
        assert np.linalg.norm(a - b) <= ROUNDED * max(np.linalg.norm(b), 0.1 * largest), name
