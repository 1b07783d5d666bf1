"""Weight decay: which parameters it shrinks, and by how much."""

from __future__ import annotations

from typing import Any

from antegrad import ops, tree
from antegrad.ir.types import type_of
from antegrad.optim import settings
from antegrad.optim.optimizer import Mask, Optimizer, State, map_leaves, nothing, wide


def everything(path: str, parameter: Any) -> bool:
    """The mask under which every parameter decays."""
    return True


def decay_matrices(path: str, parameter: Any) -> bool:
    """The mask under which tensors of two axes or more decay, and biases and the gains of norms do not.

    Source: the rule of minGPT and nanoGPT.
    """
    return parameter.ndim >= 2


def decay_report(parameters: Any, decays: Mask | Optimizer = decay_matrices) -> None:
    """Print which of `parameters` decay and which do not: path and type of each, and the totals.

    Arguments:
      parameters: a pytree of arrays.
      decays: a mask, or an optimizer, of which the report says what its own settings and masks do.
    """
    mask = decays.decays if isinstance(decays, Optimizer) else decays
    named = tree.named_leaves(parameters)
    for title, wanted in (("weight decay", True), ("no weight decay", False)):
        group = {path: type_of(leaf) for path, leaf in named.items() if bool(mask(path, leaf)) is wanted}
        print(f"{title}: {len(group)} tensors, {sum(type.size for type in group.values()):,} elements")
        for path, type in group.items():
            print(f"  {path}  {type}")


def add_decayed_weights(weight_decay: float, mask: Mask | None = None) -> Optimizer:
    """A transform for `chain`, before an optimizer: ``g + weight_decay * p``, the gradient of an L2 penalty.

    Before `sgd` and `rmsprop` it is their own ``weight_decay``, and that of torch. Before `adam` the penalty is
    rescaled like the gradient; `adamw` decouples it. Without state.

    Arguments:
      weight_decay: the factor of the penalty ``weight_decay * sum(p * p) / 2``, >= 0.
      mask: as in `adamw`.
    Raises `SettingError` for a number outside its range.
    """
    weight_decay, decays = decaying("add_decayed_weights", weight_decay, mask)

    def update(gradients: Any, state: State, parameters: Any) -> tuple[Any, State]:
        def decayed(path: str, parameter: Any, gradient: Any) -> Any:
            return penalized(wide(gradient), parameter, weight_decay) if decays(path, parameter) else gradient

        return map_leaves("add_decayed_weights", decayed, parameters=parameters, gradients=gradients), state

    return Optimizer("add_decayed_weights", lambda parameters: {}, update, decays=decays)


def decaying(owner: str, weight_decay: float, mask: Mask | None) -> tuple[float, Mask]:
    """The settings `weight_decay` and `mask`, checked: the number, and the mask of what it does shrink."""
    weight_decay = settings.number(owner, "weight_decay", weight_decay, "[0, inf)")
    mask = everything if mask is None else settings.function(owner, "mask", mask)
    return weight_decay, mask if weight_decay else nothing


def penalized(gradient: Any, parameter: Any, weight_decay: float) -> Any:
    """The gradient with that of an L2 penalty."""
    return ops.add(gradient, ops.multiply(wide(parameter), weight_decay))


def shrunk(update: Any, parameter: Any, share: Any) -> Any:
    """The update with decoupled decay: it also takes `share` of the parameter off."""
    return ops.subtract(update, ops.multiply(wide(parameter), share))
