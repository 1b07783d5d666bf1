"""The cost model, with numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

import antegrad as ag
from antegrad import ops
from antegrad.ir.cost import Collectives, Cost, cost, equation_cost
from antegrad.ops.dispatch import layer


def mlp(x: Any, w: Any, b: Any, v: Any) -> Any:
    with layer("0"):
        h = ops.relu(x @ w + b)
    with layer("2"):
        return h @ v


MLP = ag.capture(mlp, ag.spec((8, 4)), ag.spec((4, 16)), ag.spec((16,)), ag.spec((16, 2)))


def test_flops_of_an_mlp() -> None:
    """x @ w: 2*4*8*16 = 1024; + b: 8*16 = 128; relu: 128; h @ v: 2*16*8*2 = 512."""
    report = MLP.cost()
    assert report.by_layer[("0", "forward")].flops == 1024 + 128 + 128
    assert report.by_layer[("2", "forward")].flops == 512
    assert report.total.flops == 1792


def test_bytes_of_an_mlp() -> None:
    """In f32 numbers: x 32, w 64, b 16, v 32, hidden values 128, result 16.

    Read: x and w, b, two hidden ones (sum and broadcast bias), one hidden (relu), one hidden and v.
    Written: product, broadcast bias, sum, relu, result.
    """
    total = MLP.cost().total
    assert total.bytes_read == 4 * ((32 + 64) + 16 + (128 + 128) + 128 + (128 + 32))
    assert total.bytes_written == 4 * (128 + 128 + 128 + 128 + 16)
    assert total.bytes == total.bytes_read + total.bytes_written


def test_peak_of_an_mlp() -> None:
    """While product and bias are added: all inputs (144 numbers) and two hidden values; a broadcast takes no memory."""
    assert MLP.cost().peak_bytes == 4 * (144 + 2 * 128)


def test_a_view_is_alive_as_long_as_its_memory_is_read() -> None:
    """And owns memory where it is a result."""

    def viewed(x: Any) -> Any:
        y = ops.reshape(ops.exp(x), (10, 10))
        z = ops.sin(ops.cos(x))
        return ops.sum(y * ops.reshape(z, (10, 10)))

    # x, exp(x), then cos(x) and sin(cos(x)), or the last two and their product.
    assert ag.capture(viewed, ag.spec((100,))).cost().peak_bytes == 400 * 4
    assert ag.capture(lambda x: ops.reshape(x, (10, 10)), ag.spec((100,))).cost().peak_bytes == 800


def test_activation_bytes_are_what_the_backward_pass_reads() -> None:
    """Both tanh, f32[8,16] and f32[8,2]; not the square of weights, which is read too, but which no data go into."""

    def loss(x: Any, w: Any, v: Any) -> Any:
        return ops.sum(ops.tanh(ops.tanh(x @ w) @ (v * v)))

    program = ag.capture(loss, ag.spec((8, 4)), ag.spec((4, 16)), ag.spec((16, 2)))
    assert program.cost().activation_bytes == 0
    assert ag.reverse(program, ["w", "v"]).cost().activation_bytes == 4 * 8 * (16 + 2)


def test_a_value_dies_after_its_last_use() -> None:
    """Of a chain, two links are alive at a time; the input and what is returned stay."""

    def chain(x: Any) -> Any:
        for _ in range(10):
            x = ops.tanh(x)
        return x

    assert ag.capture(chain, ag.spec((100,))).cost().peak_bytes == 400 * 3


def test_outputs_stay_alive() -> None:
    def function(x: Any) -> Any:
        early = ops.tanh(x)
        return early, ops.exp(ops.sin(ops.cos(x)))

    assert ag.capture(function, ag.spec((100,))).cost().peak_bytes == 400 * 4


@pytest.mark.parametrize(
    ("function", "types", "flops"),
    [
        (lambda x, y: x + y, [ag.spec((3, 4))] * 2, 12),
        (lambda x, y: x + y, [ag.spec((3, 4), "i32")] * 2, 0),
        (lambda x: ops.exp(x), [ag.spec((5,))], 50),
        (lambda x: x.sum(), [ag.spec((3, 4))], 12),
        (lambda x: x.T.reshape((12,))[2:], [ag.spec((3, 4))], 0),
        (lambda x: x.astype("f64"), [ag.spec((5,))], 0),
        (lambda x: ops.where(x > 0, x, 0), [ag.spec((5,))], 0),
        (lambda x, y: x @ y, [ag.spec((7, 3, 4)), ag.spec((7, 4, 5))], 2 * 7 * 3 * 4 * 5),
        (lambda x, y: ops.tensordot(x, y, axes=2), [ag.spec((2, 3, 4)), ag.spec((3, 4, 5))], 2 * 2 * 12 * 5),
        (lambda x, y: x @ y, [ag.spec((2, 3), "i32"), ag.spec((3, 2), "i32")], 0),
    ],
)
def test_flops(function: Any, types: list[ag.TensorType], flops: int) -> None:
    assert ag.capture(function, *types).cost().total.flops == flops


def test_a_scan_costs_its_body_times_its_length() -> None:
    def step(h: Any, x: Any) -> Any:
        h = ops.tanh(h + x)  # 5 + 50 FLOPs
        return h, h

    scan = ag.capture(lambda h, xs: ag.scan(step, h, xs), ag.spec((5,)), ag.spec((9, 5)))
    (equation,) = scan.equations
    body = cost(equation.params["body"]).total
    assert body.flops == 55
    assert equation_cost(equation) == body * 9
    assert scan.cost().total.flops == 9 * 55


def test_nested_scans_multiply() -> None:
    def outer(c: Any, _: Any) -> Any:
        return ag.scan(lambda c, _: (c * 2, None), c, None, length=3)[0], None

    assert ag.capture(lambda c: ag.scan(outer, c, None, length=5), ag.spec((4,))).cost().total.flops == 5 * 3 * 4


def test_a_cond_costs_its_dearest_branch() -> None:
    def function(x: Any) -> Any:
        return ag.cond(x.sum() > 0, lambda x: ops.exp(x), lambda x: x + 1, x)

    assert ag.capture(function, ag.spec((6,))).cost().total.flops == 6 + 60  # sum and exp


def test_a_while_loop_costs_one_step() -> None:
    program = ag.capture(lambda x: ag.while_loop(lambda x: x.sum() < 9, lambda x: x * 2, x), ag.spec((6,)))
    assert program.cost().total.flops == 6 + 6  # sum and product


def test_the_gradient_is_told_apart() -> None:
    loss = ag.capture(lambda x, w: ops.sum(ops.tanh(x @ w)), ag.spec((8, 4)), ag.spec((4, 16)))
    parts = {part: cost.flops for (_, part), cost in ag.reverse(loss, ["w"]).cost().by_layer.items()}
    assert parts["forward"] >= 1024 + 1280
    assert 1024 < parts["backward"] < 1024 + 1024, "x.T @ d, and a few passes over 128 elements"


def test_costs_add_up() -> None:
    report = MLP.cost()
    assert sum(report.by_layer.values(), Cost()) == report.total


def test_what_is_live_at_the_peak_adds_up() -> None:
    """By layer and part, inputs aside; also where the peak is inside of a sub-program."""
    looped = ag.capture(lambda x: ag.scan(lambda c, _: (ops.exp(c) + ops.sin(c), c), x, length=5), ag.spec((6,)))
    for program in (MLP, ag.reverse(ag.capture(lambda x: ops.sum(ops.tanh(x) * x), ag.spec((50,)))), looped):
        report = program.cost()
        assert sum(report.live_by_layer.values()) == report.peak_bytes
        assert report.live_by_layer[("inputs", "")] == sum(type.nbytes for type in program.input_types)


def exchanged(x: Any) -> Any:
    """Over 4 ranks: 8 numbers reduced, 32 gathered, which are scattered again."""
    return ops.reduce_scatter(ops.all_gather(ops.all_reduce(x, 4), 4), 4)


EXCHANGED = ag.capture(exchanged, ag.spec((8,)))


def test_bytes_received() -> None:
    """All-reduce: twice 3 of 4 parts of 32 bytes. Gather and scatter: 32 bytes of each of 3 others."""
    report = EXCHANGED.cost()
    assert report.total.bytes_received == 48 + 96 + 96
    assert report.collectives == {
        "all_reduce": Collectives(1, 48),
        "all_gather": Collectives(1, 96),
        "reduce_scatter": Collectives(1, 96),
    }
    assert sum(each.bytes_received for each in report.by_layer.values()) == 240


def test_collectives_of_loops_and_branches() -> None:
    """Those of a scan as often as it has steps, of a while once, of a cond those of the dearest branch."""

    def scanned(x: Any) -> Any:
        return ag.scan(lambda c, _: (ops.all_reduce(c, 2) + ops.all_reduce(c * 2, 2), None), x, None, length=5)[0]

    def looped(x: Any) -> Any:
        return ag.while_loop(lambda c: c.sum() < 9, scanned, x)

    def branched(x: Any) -> Any:
        return ag.cond(x.sum() > 0, lambda x: ops.all_gather(x, 2)[:6], scanned, x)

    for function in (scanned, looped, branched):
        report = ag.capture(function, ag.spec((6,))).cost()
        assert report.collectives == {"all_reduce": Collectives(10, 240)}
        assert report.total.bytes_received == 240


def test_asking_for_the_rank_exchanges_nothing() -> None:
    report = ag.capture(lambda x: x + ops.axis_index(4), ag.spec((3,), "i32")).cost()
    assert report.collectives == {}
    assert report.total.bytes_received == 0


def test_printed_with_collectives() -> None:
    lines = str(EXCHANGED.cost()).splitlines()
    assert lines[-4:] == [
        "collective      count  bytes received",
        "all_reduce          1              48",
        "all_gather          1              96",
        "reduce_scatter      1              96",
    ]


def test_printed() -> None:
    assert str(MLP.cost()) == PRINTED


PRINTED = """\
cost of mlp
layer   part     FLOPs  bytes read  bytes written  live at the peak
0       forward  1,280       1,984          2,048             1,024
2       forward    512         640             64                 0
inputs               0           0              0               576
total            1,792       2,624          2,112             1,600"""
