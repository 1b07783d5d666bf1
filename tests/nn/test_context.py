"""Calls in training: what changes comes back, and misuse is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import antegrad as ag
from antegrad import nn, ops, random
from antegrad.nn import context

X = np.ones((3, 2), np.float32)


class Counter(nn.Module):
    """Counts its calls in training."""

    w: Any
    count: Any = nn.state()

    def __call__(self, x):
        context.update("count", context.current(self).count + 1)
        return x * self.w


def counter() -> Counter:
    return Counter(np.float32(2), np.float32(0))


def test_state_comes_back_and_parameters_stay() -> None:
    model = nn.Sequential(counter(), nn.relu, counter())
    y, after = nn.training_call(model, X)
    np.testing.assert_array_equal(y, 4 * X)
    assert [after[0].count, after[2].count] == [1, 1]
    assert [model[0].count, model[2].count] == [0, 0]
    assert after[0].w is model[0].w
    assert nn.training_call(after, X)[1][2].count == 2


def test_evaluation_changes_nothing() -> None:
    model = nn.Sequential(counter())
    model(X)
    assert model[0].count == 0
    assert context.training() is None


def test_an_error_ends_the_training() -> None:
    with pytest.raises(ag.ShapeError):
        nn.training_call(nn.Dense(3, 2, key=random.key(0)), X)
    assert context.training() is None


def test_a_call_can_be_captured_and_differentiated() -> None:
    model = nn.Sequential(counter(), counter())
    program = ag.capture(lambda model, x: nn.training_call(model, x), model, X)
    y, after = program.run(model, X)
    np.testing.assert_array_equal(y, 4 * X)
    assert after[1].count == 1
    gradient = ag.grad(lambda model: ops.sum(nn.training_call(model, X)[0]))(model)
    assert gradient[0].w == 12
    assert gradient[0].count == 0


def test_state_takes_no_part_in_derivatives() -> None:
    class Following(nn.Module):
        w: Any
        seen: Any = nn.state()

        def __call__(self, x):
            context.update("seen", ops.sum(x * self.w))
            return x * self.w

    model = Following(np.float32(3), np.float32(0))
    assert nn.training_call(model, X)[1].seen == 18
    assert ag.grad(lambda model: nn.training_call(model, X)[1].seen)(model).w == 0


def test_state_of_a_module_from_outside_is_refused() -> None:
    stray = counter()
    model = nn.Sequential(lambda x: stray(x))
    with pytest.raises(ag.NameMissing, match=r"Sequential has no array at Counter.count; it has"):
        nn.training_call(model, X)


def test_state_keeps_its_type() -> None:
    class Growing(nn.Module):
        seen: Any = nn.state()

        def __call__(self, x):
            context.update("seen", ops.concatenate([self.seen, self.seen]))
            return x

    with pytest.raises(ag.ShapeError, match=r"seen of Growing is f32\[2\], its update f32\[4\]"):
        nn.training_call(Growing(np.zeros(2, np.float32)), X)


def test_a_subclass_inherits_a_written_constructor() -> None:
    class Wide(nn.Dense):
        pass

    class Flagged(nn.Dense):
        flag: bool = nn.static(default=False)

    assert repr(Wide(2, 3, key=random.key(0))) == "Wide(w=f32[2,3], b=f32[3])"
    assert Flagged(2, 3, key=random.key(0)).flag is False
