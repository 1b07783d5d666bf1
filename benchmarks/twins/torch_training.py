"""A training step in PyTorch, as its users write it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from benchmarks.twins.recipes import SGD, Adam, AdamW, Recipe

Loss = Callable[[Any, Any], Tensor]


def to_torch(x: Any) -> Tensor:
    """A batch in torch's conventions: images [batch, channels, height, width], integers i64."""
    x = np.asarray(x)
    if x.dtype.kind in "iu":
        return torch.tensor(x.astype(np.int64))
    return torch.tensor(np.ascontiguousarray(x.transpose(0, 3, 1, 2)) if x.ndim == 4 else x)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean over all labels."""
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))


def mean_squared_error(prediction: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(prediction, target)


def optimizer(recipe: Recipe, module: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of `recipe`; where its rate is a schedule, with the first rate (see `rates`)."""
    rate = rates(recipe)(0)
    match recipe:
        case Adam():
            return torch.optim.Adam(module.parameters(), rate)
        case AdamW(_, b2, weight_decay):
            matrices = [p for p in module.parameters() if p.ndim >= 2]
            others = [p for p in module.parameters() if p.ndim < 2]
            groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
            return torch.optim.AdamW(groups, rate, betas=(0.9, b2))
        case SGD(_, momentum, weight_decay):
            return torch.optim.SGD(module.parameters(), rate, momentum, weight_decay=weight_decay)


def rates(recipe: Recipe) -> Callable[[int], float]:
    """The learning rate by the number of steps done."""
    rate = recipe.rate
    return lambda count: float(np.asarray(rate(count))) if callable(rate) else rate


def train_step(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Loss = cross_entropy,
    rates: Callable[[int], float] | None = None,
) -> Callable[[Tensor, Tensor], Tensor]:
    """The step from a batch to its loss (a tensor still), which changes `module`. `rates` are those of a schedule."""
    module.train()
    done = 0

    def step(x: Tensor, y: Tensor) -> Tensor:
        nonlocal done
        if rates is not None:
            for group in optimizer.param_groups:
                group["lr"] = rates(done)
        optimizer.zero_grad(set_to_none=True)
        value = loss(module(x), y)
        value.backward()
        optimizer.step()
        done += 1
        return value.detach()

    return step
