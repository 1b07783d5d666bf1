"""A layer against its counterpart in torch, in f64: values, and gradients of weights and inputs, on every device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import antegrad as ag
from antegrad import checkpoint, ops, tree
from antegrad.checkpoint.names import Names
from tests.support import assert_close, devices

ALLOWED = 1e-11
"""Error relative to the largest element."""


def require_torch() -> Any:
    """torch, or the test is skipped."""
    return pytest.importorskip("torch")


def assert_same_as_torch(
    model: Any,
    names: Names,
    module: Any,
    ours: Callable[..., Any],
    theirs: Callable[..., Any],
    *inputs: np.ndarray,
    unchanged: tuple[str, ...] = (),
) -> Any:
    """``ours(model, *inputs)`` is ``theirs(module, *tensors)`` with the weights of `module`; gives the loaded model.

    `names` leads from the names of `module` to those of `model`, for its weights and for their gradients.
    """
    torch = require_torch()
    module = module.double()
    model = checkpoint.load_torch_names(module.state_dict(), model, names, unchanged=unchanged)
    tensors = [torch.tensor(x, requires_grad=x.dtype.kind == "f") for x in inputs]
    expected = _flat(theirs(module, *tensors))
    cotangents = [np.random.default_rng(i).normal(size=tuple(y.shape)) for i, y in enumerate(expected)]
    for i, (found, y) in enumerate(zip(tree.leaves(ours(model, *inputs)), expected, strict=True)):
        assert_close(np.asarray(found), y.detach().numpy(), ALLOWED, f"output {i}")

    sum((y * torch.tensor(c)).sum() for y, c in zip(expected, cotangents, strict=True)).backward()
    of_weights = {name: p.grad if p.grad is not None else torch.zeros_like(p) for name, p in module.named_parameters()}
    buffers = {name: torch.zeros_like(b) for name, b in module.named_buffers() if name in module.state_dict()}
    wanted = checkpoint.load_torch_names(of_weights | buffers, model, names, unchanged=unchanged)
    of_inputs = [t.grad.numpy() for t in tensors if t.requires_grad]

    def loss(model: Any, *inputs: Any) -> Any:
        outputs = tree.leaves(ours(model, *inputs))
        return sum(ops.sum(y * c) for y, c in zip(outputs, cotangents, strict=True))

    floats = [0, *(1 + i for i, x in enumerate(inputs) if x.dtype.kind == "f")]
    for device in devices():
        gradients = ag.compile(ag.grad(loss, argnums=floats), device=device)(model, *inputs)
        for name, found in tree.named_leaves(gradients[0]).items():
            truth = wanted.named_parameters()[name]
            assert_close(np.asarray(found), truth, ALLOWED, f"gradient of {name} on {device}", scale=1)
        for i, (found, truth) in enumerate(zip(gradients[1:], of_inputs, strict=True)):
            assert_close(np.asarray(found), truth, ALLOWED, f"gradient of input {i} on {device}")
    return model


def _flat(outputs: Any) -> list[Any]:
    """Tensors, from a nest of tuples of them."""
    return [leaf for each in outputs for leaf in _flat(each)] if isinstance(outputs, tuple) else [outputs]
