"""Weight decay: which parameters it shrinks, and decay as a term of the gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from antegrad import ops, tree
from antegrad.ir.types import type_of
from antegrad.optim.optimizer import Optimizer, State, map_leaves, wide

Mask = Callable[[str, Any], bool]
"""``mask(path, parameter)``: whether weight decay shrinks the parameter at ``blocks.3.w``."""


def everything(path: str, parameter: Any) -> bool:
    """The mask under which every parameter decays."""
    return True


def decay_matrices(path: str, parameter: Any) -> bool:
    """The mask under which tensors of two axes or more decay, and biases and the gains of norms do not.

    Source: the rule of minGPT and nanoGPT.
    """
    return parameter.ndim >= 2


def decay_report(parameters: Any, mask: Mask = decay_matrices) -> None:
    """Print which of `parameters` decay under `mask` and which do not: path and type of each, and the totals."""
    named = tree.named_leaves(parameters)
    for title, wanted in (("weight decay", True), ("no weight decay", False)):
        group = {path: type_of(leaf) for path, leaf in named.items() if bool(mask(path, leaf)) is wanted}
        print(f"{title}: {len(group)} tensors, {sum(type.size for type in group.values()):,} elements")
        for path, type in group.items():
            print(f"  {path}  {type}")


def add_decayed_weights(weight_decay: float, mask: Mask | None = None) -> Optimizer:
    """A transform for `chain`, before an optimizer: ``g + weight_decay * p``, the gradient of an L2 penalty.

    Before `sgd` it is the ``weight_decay`` of ``torch.optim.SGD``. Before `adam` the penalty is rescaled like the
    gradient; `adamw` decouples it. Without state.

    Arguments:
      mask: as in `adamw`.
    """
    decays = mask or everything

    def update(gradients: Any, state: State, parameters: Any) -> tuple[Any, State]:
        def decayed(path: str, parameter: Any, gradient: Any) -> tuple[Any]:
            if not decays(path, parameter):
                return (gradient,)
            return (ops.add(wide(gradient), ops.multiply(wide(parameter), weight_decay)),)

        (result,) = map_leaves("add_decayed_weights", decayed, parameters=parameters, gradients=gradients)
        return result, state

    return Optimizer("add_decayed_weights", lambda parameters: {}, update)
