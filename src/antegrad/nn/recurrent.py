"""Recurrent layers: `GRU` and `LSTM`, with torch's formulas and its order of gates."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from antegrad import ops, random, tree
from antegrad.errors import SettingError
from antegrad.flow import scan
from antegrad.ir.types import DTypeLike, TensorType, type_of
from antegrad.nn.layers import Dense
from antegrad.nn.module import Module, static
from antegrad.ops.arrays import misfit
from antegrad.ops.dispatch import as_tensor


class Cell(Module, ABC):
    """One step of a recurrent layer: linear maps of the input and of the hidden state to all gates.

    Weights are uniform within ``1 / sqrt(features)``, biases 0.
    """

    input: Dense
    recurrent: Dense

    gates: ClassVar[int]
    arrays: ClassVar[int]
    """Arrays [..., features] in a state; the first is the hidden state, which is also the output."""

    def __init__(self, inputs: int, features: int, *, key: Any, bias: bool = True, dtype: DTypeLike = "f32") -> None:
        bound, outputs = 1 / math.sqrt(max(features, 1)), self.gates * features

        def initializer(key: Any, shape: Sequence[int], dtype: DTypeLike = "f32") -> Any:
            return random.uniform(key, tuple(shape), dtype, -bound, bound)

        of_input, of_state = random.split(key)
        self._set(
            input=Dense(inputs, outputs, key=of_input, initializer=initializer, bias=bias, dtype=dtype),
            recurrent=Dense(features, outputs, key=of_state, initializer=initializer, bias=bias, dtype=dtype),
        )

    @property
    def features(self) -> int:
        """The size of the hidden state."""
        return self.recurrent.w.shape[0]

    def __call__(self, x: Any, state: Any) -> Any:
        """The state after the input `x` [..., inputs]."""
        return self.advance(self.input(x), state)

    @abstractmethod
    def advance(self, projected: Any, state: Any) -> Any:
        """The state after an input that `self.input` has mapped to [..., gates * features]."""


class GRUCell(Cell):
    """A step of a gated recurrent unit; the state is the hidden state h [..., features].

    ``r = sigmoid(x Wr + h Ur)``, ``z = sigmoid(x Wz + h Uz)``, ``n = tanh(x Wn + r * (h Un))`` and
    ``h = (1 - z) * n + z * h``, each product with its bias; the gates stand side by side in the order r, z, n.
    Source: Cho et al. (2014), arXiv:1406.1078, with the reset after the product, as in cuDNN and torch.
    """

    gates = 3
    arrays = 1

    def advance(self, projected: Any, state: Any) -> Any:
        reset_x, update_x, new_x = ops.split(projected, 3, axis=-1)
        reset_h, update_h, new_h = ops.split(self.recurrent(state), 3, axis=-1)
        reset, update = ops.sigmoid(reset_x + reset_h), ops.sigmoid(update_x + update_h)
        candidate = ops.tanh(new_x + reset * new_h)
        return (1 - update) * candidate + update * state


class LSTMCell(Cell):
    """A step of long short-term memory; the state is a pair (h, c) of arrays [..., features].

    ``c = f * c + i * g`` and ``h = o * tanh(c)``, where i, f and o are sigmoids and g is a tanh of ``x W + h U`` with
    both biases; the gates stand side by side in the order i, f, g, o. Source: Hochreiter and Schmidhuber, "Long
    short-term memory" (1997), with the forget gate of Gers et al. (2000).
    """

    gates = 4
    arrays = 2

    def advance(self, projected: Any, state: Any) -> Any:
        hidden, memory = state
        entry, forget, new, exit = ops.split(projected + self.recurrent(hidden), 4, axis=-1)
        memory = ops.sigmoid(forget) * memory + ops.sigmoid(entry) * ops.tanh(new)
        return ops.sigmoid(exit) * ops.tanh(memory), memory


class Recurrent(Module):
    """Base of `GRU` and `LSTM`: cells that go along a sequence, in layers, in one or both directions.

    Arguments of the constructor: sizes of input and hidden state; the number of `layers`, each of which reads what the
    one before gives; `bidirectional`: each layer goes both ways, and its two outputs stand side by side; `reverse`: it
    goes from the last token to the first, and gives its outputs in the order of the input.
    """

    forward: tuple[Any, ...]
    backward: tuple[Any, ...]
    reverse: bool = static(default=False)

    cell: ClassVar[type[Cell]]

    def __init__(
        self,
        inputs: int,
        features: int,
        *,
        key: Any,
        layers: int = 1,
        bidirectional: bool = False,
        reverse: bool = False,
        bias: bool = True,
        dtype: DTypeLike = "f32",
    ) -> None:
        if layers < 1 or (bidirectional and reverse):
            raise SettingError(
                f"{type(self).__name__}: at least one layer is needed, and one of bidirectional and reverse at most, "
                f"found layers={layers}, bidirectional={bidirectional}, reverse={reverse}"
            )
        directions = 2 if bidirectional else 1
        sizes = [inputs] + [directions * features] * (layers - 1)
        keys, shared = random.split(key, (directions, layers)), {"bias": bias, "dtype": dtype}
        ways = [
            tuple(self.cell(size, features, key=keys[way, layer], **shared) for layer, size in enumerate(sizes))
            for way in range(directions)
        ]
        self._set(forward=ways[0], backward=ways[1] if bidirectional else (), reverse=reverse)

    def __call__(self, x: Any, initial: Any = None) -> tuple[Any, Any]:
        """The outputs for all of a sequence, and the states at its end.

        `x` is [..., L, inputs]. A state is [layers * directions, ..., features] for a GRU, and a pair (h, c) of these
        for an LSTM: layer by layer, in each first forward, then backward; `initial` is 0 if None. Returns
        [..., L, directions * features] and the state. Raises `ShapeError` where the types do not fit.
        """
        x = as_tensor(x)
        if x.ndim < 2:
            raise misfit(f"{type(self).__name__} takes an input (..., length, inputs), found {type_of(x)}")
        x, finals = ops.moveaxis(x, -2, 0), []
        for layer, forward in enumerate(self.forward):
            ways = [(forward, self.reverse)] + [(cell, True) for cell in self.backward[layer : layer + 1]]
            outputs = []
            for cell, reverse in ways:
                projected = cell.input(x)
                state = self._state(initial, len(finals), projected)
                final, output = _along(cell, projected, state, reverse)
                finals.append(final)
                outputs.append(output)
            x = outputs[0] if len(outputs) == 1 else ops.concatenate(outputs, axis=-1)
        return ops.moveaxis(x, 0, -2), tree.map(lambda *each: ops.stack(each), *finals)

    def _state(self, initial: Any, index: int, projected: Any) -> Any:
        """The state in which a cell starts: its part of `initial`, or zeros."""
        features, count = self.forward[0].features, len(self.forward) + len(self.backward)
        shape = (*projected.shape[1:-1], features)
        pair = self.cell.arrays > 1
        if initial is None:
            zeros = (ops.zeros(shape, projected.dtype),) * self.cell.arrays
            return zeros if pair else zeros[0]
        found = [as_tensor(each) for each in (initial if pair else (initial,))]
        expected = TensorType((count, *shape), projected.dtype)
        if len(found) != self.cell.arrays or any(type_of(each) != expected for each in found):
            wanted = "a pair (h, c), each" if pair else "one array"
            listed = ", ".join(str(type_of(each)) for each in found)
            raise misfit(f"{type(self).__name__}: the initial state is {wanted} {expected}, found {listed}")
        return tuple(each[index] for each in found) if pair else found[0][index]


def _along(cell: Cell, projected: Any, state: Any, reverse: bool) -> tuple[Any, Any]:
    """The last state, and the hidden states [L, ..., features], of a cell along inputs that it has mapped already."""

    def step(state: Any, gates: Any) -> tuple[Any, Any]:
        state = cell.advance(gates, state)
        return state, state[0] if cell.arrays > 1 else state

    return scan(step, state, projected, reverse=reverse)


class GRU(Recurrent):
    """Gated recurrent units along a sequence: ``outputs, h = layer(x, initial)``. See `Recurrent` and `GRUCell`."""

    cell = GRUCell


class LSTM(Recurrent):
    """Long short-term memory along a sequence: ``outputs, (h, c) = layer(x, initial)``. See `Recurrent`, `LSTMCell`."""

    cell = LSTMCell
