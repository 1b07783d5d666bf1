"""Layers that are random in training and do nothing in evaluation: `Dropout` and `StochasticDepth`."""

from __future__ import annotations

from typing import Any

from antegrad import ops, random
from antegrad.errors import SettingError
from antegrad.nn import context
from antegrad.nn.module import Module, static
from antegrad.ops.arrays import misfit
from antegrad.ops.dispatch import as_tensor


class Dropout(Module):
    """In training each element becomes 0 with probability `rate`, and ``x / (1 - rate)`` else; in evaluation ``x``.

    The mask is a function of the key of `training_call` and the layer's path, so it is the same whenever both are.
    With `rate` 0 no key is needed; with `rate` 1 everything becomes 0. It has no parameters. The constructor raises
    `SettingError` for a rate outside [0, 1]. Source: Srivastava et al., "Dropout" (2014).
    """

    rate: float = static()

    def __init__(self, rate: float) -> None:
        self._set(rate=_checked("Dropout", rate))

    def __call__(self, x: Any) -> Any:
        x = as_tensor(x)
        return _dropped(f"Dropout({self.rate:g})", x, self.rate, x.shape)


class StochasticDepth(Module):
    """In training each sample as a whole becomes 0 with probability `rate`, and ``x / (1 - rate)`` else.

    Put it last in the body of a `Residual`, which then skips the body for some samples. Otherwise as `Dropout`; also
    known as drop path. The first axis is that of the samples. Source: Huang et al. (2016), arXiv:1603.09382.
    """

    rate: float = static()

    def __init__(self, rate: float) -> None:
        self._set(rate=_checked("StochasticDepth", rate))

    def __call__(self, x: Any) -> Any:
        x = as_tensor(x)
        if x.ndim == 0:
            raise misfit(f"StochasticDepth({self.rate:g}) takes an input whose first axis is the batch, found a scalar")
        return _dropped(f"StochasticDepth({self.rate:g})", x, self.rate, (x.shape[0], *(1,) * (x.ndim - 1)))


def _checked(layer: str, rate: float) -> float:
    if not 0 <= rate <= 1:
        raise SettingError(f"{layer}: the rate must be in [0, 1], found {rate}")
    return float(rate)


def _dropped(layer: str, x: Any, rate: float, shape: tuple[int, ...]) -> Any:
    """`x` with what a mask of `shape` chooses set to 0, and the rest made larger."""
    if context.training() is None or rate == 0:
        return x
    if rate == 1:
        return ops.zeros_like(x)
    kept = random.bernoulli(context.layer_key(layer), 1 - rate, shape)
    return ops.where(ops.name(kept, "kept"), ops.divide(x, 1 - rate), 0)
