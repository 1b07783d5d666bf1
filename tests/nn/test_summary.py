"""The summary of a small network against numbers counted by hand."""

from __future__ import annotations

import numpy as np

import antegrad as ag
from antegrad import nn, random
from antegrad.ir.cost import Cost

KEY = random.key(0)


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2D(3, 4, 3, padding="VALID", key=KEY), nn.relu, nn.MaxPool(2), nn.Flatten(), nn.Dense(16, 10, key=KEY)
    )


def test_a_small_cnn() -> None:
    """Images of 6x6: the convolution makes 4x4, the pooling 2x2. An element has 4 bytes."""
    found = nn.summary(network(), ag.spec((2, 6, 6, 3)))
    rows = {row.path: row for row in found.rows}
    assert [(row.path, row.kind, row.output) for row in found.rows] == [
        ("", "Sequential", "f32[2,10]"),
        ("0", "Conv2D", "f32[2,4,4,4]"),
        ("1", "relu", "f32[2,4,4,4]"),
        ("2", "MaxPool", "f32[2,2,2,4]"),
        ("3", "Flatten", "f32[2,16]"),
        ("4", "Dense", "f32[2,10]"),
    ]
    assert [row.parameters for row in found.rows] == [0, 3 * 3 * 3 * 4 + 4, 0, 0, 0, 16 * 10 + 10]
    outputs, pixels = 2 * 4 * 4 * 4, 2 * 6 * 6 * 3
    assert rows["0"].forward.flops == outputs * 27 * 2 + outputs
    bias = 4 * (4 + outputs)  # read once and written in the shape of the result
    assert rows["0"].forward.bytes == 4 * (pixels + 108 + outputs) + bias + 4 * 3 * outputs
    assert rows["1"].forward == Cost(outputs, 4 * outputs, 4 * outputs)
    assert rows["2"].forward.bytes_written == 4 * outputs // 4
    assert rows["4"].forward.flops == 2 * 10 * 16 * 2 + 2 * 10
    assert found.parameters == network().parameter_count() == 282
    assert found.forward.flops == sum(row.forward.flops for row in found.rows)
    assert found.backward == Cost()


def test_the_total_is_that_of_the_program() -> None:
    model, x = network(), ag.spec((2, 6, 6, 3))
    program = ag.simplify(ag.capture(lambda model, x: model(x), model, x))
    assert nn.summary(model, x).forward == program.cost().total


def test_training_counts_the_backward_pass_and_state() -> None:
    model = nn.Sequential(nn.Dense(8, 16, key=KEY), nn.BatchNorm(16), nn.Dropout(0.5), nn.Dense(16, 4, key=KEY))
    found = nn.summary(model, ag.spec((32, 8)), training=True)
    rows = {row.path: row for row in found.rows}
    assert rows["0"].backward.flops == 2 * 32 * 8 * 16 + 32 * 16  # the weights and the bias; the input needs none
    assert rows["3"].backward.flops == 2 * 2 * 32 * 16 * 4 + 32 * 4
    assert rows["1"].state == 32
    assert rows["1"].parameters == 32
    assert rows["2"].forward.bytes > 0
    assert found.parameters == model.parameter_count()
    assert "state: 32 elements beside the parameters" in str(found)


def test_layers_of_a_repeat_count_as_often_as_they_run() -> None:
    one = nn.summary(nn.Sequential(nn.Dense(4, 4, key=KEY)), ag.spec((2, 4)), training=True)
    five = nn.summary(nn.Repeat(lambda key: nn.Dense(4, 4, key=key), 5, key=KEY), ag.spec((2, 4)), training=True)
    rows = {row.path: row for row in five.rows}
    assert rows["layers"].forward.flops == 5 * one.forward.flops
    assert rows["layers"].parameters == 5 * 20
    # The first layer alone needs no gradient of its input; those of a loop do.
    assert rows["layers"].backward.flops == 5 * (one.backward.flops + 2 * 2 * 4 * 4)


def test_it_prints_as_a_table() -> None:
    text = str(nn.summary(network(), np.zeros((2, 6, 6, 3), "f")))
    lines = text.splitlines()
    assert lines[0] == "Sequential"
    assert lines[1].split() == ["layer", "class", "output", "parameters", "FLOPs", "bytes"]
    assert lines[3].split()[:4] == ["0", "Conv2D", "f32[2,4,4,4]", "112"]
    assert lines[-1].split()[:2] == ["total", "282"]
    assert set(lines[-2]) == {"-"}
    assert len({len(line) for line in lines[1:]}) == 1
