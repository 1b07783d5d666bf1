"""What all losses share: the checks of their tensors, the weights of samples, and the ways to make one number."""

from __future__ import annotations

from typing import Any

from antegrad import ops
from antegrad.errors import DTypeError, ShapeError
from antegrad.ir.types import accumulation_dtype, is_float, type_of
from antegrad.ops.dispatch import as_tensor, here
from antegrad.optim import settings

REDUCTIONS = ("mean", "sum", "none", "sums")


def alike(loss: str, **tensors: Any) -> list[Any]:
    """Float tensors of one shape, 16-bit ones as f32. Raises `ShapeError` and `DTypeError` with the user's line."""
    named = {name: as_tensor(tensor) for name, tensor in tensors.items()}
    found = " and ".join(f"{name} {type_of(tensor)}" for name, tensor in named.items())
    if len({tuple(tensor.shape) for tensor in named.values()}) > 1:
        raise ShapeError(f"{loss}: {found} must have one shape; nothing is broadcast, so reshape one{place()}")
    if not all(is_float(tensor.dtype) for tensor in named.values()):
        raise DTypeError(f"{loss}: float tensors are needed, found {found}: use .astype(...){place()}")
    return [wide(tensor) for tensor in named.values()]


def wide(x: Any) -> Any:
    return ops.convert(x, accumulation_dtype(x.dtype))


def place() -> str:
    line = str(here())
    return f"\n  at {line}" if line else ""


def shares(loss: str, sample_weights: Any, like: Any, axis: int | None = None) -> Any:
    """`sample_weights` in the shape and the type of the losses, or None for None.

    The losses have the shape of `like`, without `axis` where there is one.
    """
    if sample_weights is None:
        return None
    weights = as_tensor(sample_weights)
    shape = like.shape if axis is None else (*like.shape[:axis], *like.shape[axis + 1 :])
    if not is_float(weights.dtype):
        raise DTypeError(f"{loss}: sample_weights are float, found {type_of(weights)}: use .astype(...){place()}")
    if weights.shape != shape[: weights.ndim]:
        raise ShapeError(
            f"{loss}: the shape of sample_weights, {type_of(weights)}, must be the beginning of that of the losses, "
            f"{shape}{place()}"
        )
    spread = ops.reshape(ops.convert(weights, like.dtype), weights.shape + (1,) * (len(shape) - weights.ndim))
    return ops.broadcast_to(spread, shape)


def present(share: Any, *tensors: Any, axis: int | None = None, fill: float = 0.0) -> list[Any]:
    """The tensors with `fill` in the place of samples of weight 0, so that nothing comes of what these hold.

    The derivative of a select drops them there. `axis` is one that the tensors have and the losses have not.
    """
    if share is None:
        return list(tensors)
    kept = ops.name(ops.not_equal(share if axis is None else ops.expand_dims(share, axis), 0.0), "present")
    return [ops.where(kept, tensor, fill) for tensor in tensors]


def reduced(loss: str, values: Any, reduction: str, share: Any = None, counted: Any = None) -> Any:
    """The losses `values`, times the `share` of their samples, as `reduction` says.

    `counted` is what each of them counts in the mean beside the share; None for 1.
    """
    settings.choice(loss, "reduction", reduction, REDUCTIONS)
    if share is not None:
        values = ops.mul_no_nan(share, values)
        counted = share if counted is None else ops.multiply(share, counted)
    if reduction == "none":
        return values
    if reduction == "mean" and counted is None:
        return ops.mean(values)
    total = ops.sum(values)
    if reduction == "sum":
        return total
    whole = ops.full((), float(values.size), values.dtype) if counted is None else ops.name(ops.sum(counted), "whole")
    return (total, whole) if reduction == "sums" else ops.divide(total, ops.where(ops.equal(whole, 0.0), 1.0, whole))
