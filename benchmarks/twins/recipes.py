"""Optimizers described once, and made for antegrad here, and for the others in `jax_training` and `torch_training`."""

from __future__ import annotations

from dataclasses import dataclass

from antegrad import optim
from antegrad.optim.optimizer import Schedule


@dataclass(frozen=True)
class Adam:
    """Adam with its usual settings."""

    rate: float | Schedule = 1e-3

    def antegrad(self) -> optim.Optimizer:
        return optim.adam(self.rate)


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled decay of the matrices: neither biases nor norms decay."""

    rate: float | Schedule = 1e-3
    b2: float = 0.999
    weight_decay: float = 0.1

    def antegrad(self) -> optim.Optimizer:
        return optim.adamw(self.rate, b2=self.b2, weight_decay=self.weight_decay, mask=optim.decay_matrices)


@dataclass(frozen=True)
class SGD:
    """Momentum, and an L2 penalty of everything."""

    rate: float | Schedule = 0.1
    momentum: float = 0.9
    weight_decay: float = 0.0

    def antegrad(self) -> optim.Optimizer:
        return optim.sgd(self.rate, momentum=self.momentum, weight_decay=self.weight_decay)


Recipe = Adam | AdamW | SGD
