"""Einstein summation: any expression of NumPy's, in pairwise steps whose order NumPy's path search finds by cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from antegrad import ops
from antegrad.errors import ShapeError
from antegrad.ops.dispatch import as_tensor
from antegrad.ops.linalg import dot_general
from antegrad.ops.promotion import unify

__all__ = ["einsum"]


def einsum(subscripts: str, *operands: Any) -> Any:
    """``einsum("bij,bjk->bik", x, y)``. Repeated labels, ``...``, implicit output and any number of operands.

    Raises `ShapeError` when the expression does not fit the shapes.
    """
    tensors = [as_tensor(operand) for operand in operands]
    inputs, output = _parsed(subscripts, tensors)
    stand_ins = [np.broadcast_to(np.float32(0), tensor.shape) for tensor in tensors]
    expression = f"{','.join(inputs)}->{output}"
    try:
        path = np.einsum_path(expression, *stand_ins, optimize="optimal" if len(tensors) < 6 else "greedy")[0][1:]
    except ValueError as error:
        shapes = " and ".join(str(list(tensor.shape)) for tensor in tensors)
        raise ShapeError(f"einsum {subscripts!r} does not fit {shapes}: {error}") from None
    tensors = list(unify("einsum", *tensors))
    labels = list(inputs)
    for step in path:
        places = sorted(step, reverse=True)
        pairs = [(labels.pop(place), tensors.pop(place)) for place in places][::-1]
        kept = set(output).union(*labels)
        while len(pairs) > 1:
            needed = kept.union(*(label for label, _ in pairs[2:]))
            pairs[:2] = [_contracted(*pairs[0], *pairs[1], needed)]
        label, tensor = pairs[0]
        labels.append(label)
        tensors.append(tensor)
    label, tensor = _reduced(labels[0], tensors[0], set(output))
    return ops.transpose(tensor, [label.index(axis) for axis in output])


def _parsed(subscripts: str, tensors: Sequence[Any]) -> tuple[list[str], str]:
    """The labels of every operand and of the result, with ``...`` replaced by capital letters not in use."""
    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(tensors):
        raise ShapeError(f"einsum {subscripts!r} names {len(terms)} operands, found {len(tensors)}")
    free = [letter for letter in "ZYXWVUTSRQPONMLKJIHGFEDCBA" if letter not in text]
    widths = [tensor.ndim - len(term.replace("...", "")) for term, tensor in zip(terms, tensors, strict=True)]
    dots = max((width for term, width in zip(terms, widths, strict=True) if "..." in term), default=0)
    names = "".join(reversed(free[:dots]))
    inputs = [term.replace("...", names[dots - w :] if w > 0 else "") for term, w in zip(terms, widths, strict=True)]
    for term, tensor in zip(inputs, tensors, strict=True):
        if len(term) != tensor.ndim:
            raise ShapeError(f"einsum {subscripts!r}: {term!r} has {len(term)} labels for shape {list(tensor.shape)}")
    if not arrow:
        counts = "".join(inputs)
        right = ("..." if dots else "") + "".join(sorted(c for c in set(counts) - set(names) if counts.count(c) == 1))
    return inputs, right.replace("...", names)


def _reduced(label: str, tensor: Any, kept: set[str]) -> tuple[str, Any]:
    """Diagonals of repeated labels taken, and labels that nobody needs summed away."""
    for letter in dict.fromkeys(label):
        while label.count(letter) > 1:
            first, second = label.index(letter), label.rindex(letter)
            tensor = _diagonal(tensor, first, second)
            label = label[:second] + label[second + 1 :]
    gone = tuple(place for place, letter in enumerate(label) if letter not in kept)
    return "".join(letter for letter in label if letter in kept), ops.sum(tensor, gone) if gone else tensor


def _diagonal(tensor: Any, first: int, second: int) -> Any:
    """The diagonal of two axes, in the place of the first."""
    size = tensor.shape[first]
    shape = tuple(size if place in (first, second) else 1 for place in range(tensor.ndim))
    mask = ops.reshape(ops.eye(size, dtype="bool"), shape)
    return ops.sum(ops.where(mask, tensor, 0), second)


def _contracted(left: str, x: Any, right: str, y: Any, kept: set[str]) -> tuple[str, Any]:
    """Two operands as one: shared labels are batch axes if they are needed later, else contracted."""
    left, x = _reduced(left, x, kept | set(right))
    right, y = _reduced(right, y, kept | set(left))
    x, y = _stretched(left, x, right, y), _stretched(right, y, left, x)
    shared = [letter for letter in left if letter in right]
    batch = [letter for letter in shared if letter in kept]
    summed = [letter for letter in shared if letter not in kept]
    contract, batched = ((_places(left, group), _places(right, group)) for group in (summed, batch))
    result = dot_general(x, y, contract, batched)
    rest = [c for c in left if c not in shared] + [c for c in right if c not in shared]
    return "".join([*batch, *rest]), result


def _places(label: str, letters: Sequence[str]) -> tuple[int, ...]:
    return tuple(label.index(letter) for letter in letters)


def _stretched(label: str, x: Any, other: str, y: Any) -> Any:
    """`x` with axes of size 1 stretched to what the other operand has under the same label, as NumPy does."""
    sizes = dict(zip(other, y.shape, strict=True))
    shape = [sizes.get(c, n) if n == 1 else n for c, n in zip(label, x.shape, strict=True)]
    return ops.broadcast_to(x, tuple(shape))
