"""Einstein summation: any expression of NumPy's, in pairwise steps whose order NumPy's path search finds by cost."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import numpy as np

from antegrad import ops
from antegrad.errors import DTypeError
from antegrad.ir.types import BOOL, accumulation_dtype, type_of
from antegrad.ops.arrays import misfit
from antegrad.ops.dispatch import here
from antegrad.ops.linalg import dot_general
from antegrad.ops.promotion import unify

__all__ = ["einsum"]


def einsum(subscripts: str, *operands: Any) -> Any:
    """Sum of products of elements with equal labels: ``einsum("bij,bjk->bik", x, y)`` is a batch of matrix products.

    A label is a letter for each axis. Labels that the output lacks are summed over; one that stands twice in an operand
    takes its diagonal; ``...`` stands for the axes without a label. Without ``->`` the output has the axes of ``...``,
    then the labels that stand once, in alphabetical order.
    Shapes: as the labels say; axes of size 1 are stretched, and so are those of ``...``. Pairs of operands are
    multiplied in the order of the least cost (with more than five, in a good one). 16-bit floats are summed in f32.
    Edges: the sum over an empty axis is 0. Raises `ShapeError` for an expression that does not fit.
    Derivative: for each operand the product of dy with the others.
    """
    given = unify("einsum", *operands)
    if any(tensor.dtype == BOOL for tensor in given):
        found = ", ".join(str(type_of(tensor)) for tensor in given)
        raise DTypeError(f"einsum is for numbers, found {found}: use .astype(...)\n  at {here()}")
    labels, output = _parsed(subscripts, given)
    tensors = _widened(labels, output, given)
    for step in _path(subscripts, labels, output, tensors):
        pairs = [(labels.pop(place), tensors.pop(place)) for place in sorted(step, reverse=True)][::-1]
        kept = set(output).union(*labels)
        while len(pairs) > 1:
            needed = kept.union(*(label for label, _ in pairs[2:]))
            pairs[:2] = [_contracted(*pairs[0], *pairs[1], needed)]
        labels.append(pairs[0][0])
        tensors.append(pairs[0][1])
    label, tensor = _reduced(labels[0], tensors[0], set(output))
    return ops.convert(ops.transpose(tensor, [label.index(axis) for axis in output]), given[0].dtype)


def _widened(labels: Sequence[str], output: str, tensors: Sequence[Any]) -> list[Any]:
    """16-bit floats as f32 where more than one product or sum would round; a single product rounds its sum once."""
    once = len(labels) < 3 and all("".join(labels).count(c) > 1 for label in labels for c in label if c not in output)
    return list(tensors) if once else [ops.convert(x, accumulation_dtype(x.dtype)) for x in tensors]


def _path(subscripts: str, labels: Sequence[str], output: str, tensors: Sequence[Any]) -> list[tuple[int, ...]]:
    """Which operands to multiply in each step; the result of a step goes to the end of the list."""
    stand_ins = [np.broadcast_to(np.float32(0), tensor.shape) for tensor in tensors]
    search = "optimal" if len(tensors) < 6 else "greedy"
    try:
        return np.einsum_path(f"{','.join(labels)}->{output}", *stand_ins, optimize=search)[0][1:]
    except ValueError as error:
        shapes = " and ".join(str(type_of(tensor)) for tensor in tensors)
        raise misfit(f"einsum {subscripts!r} does not fit {shapes}: {error}") from None


def _parsed(subscripts: str, tensors: Sequence[Any]) -> tuple[list[str], str]:
    """The labels of every operand and of the result, with ``...`` replaced by capital letters not in use."""
    left, arrow, right = subscripts.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(tensors):
        raise misfit(f"einsum {subscripts!r} names {len(terms)} operands, found {len(tensors)}")
    if not set(string.ascii_letters).issuperset("".join(term.replace("...", "", 1) for term in (*terms, right))):
        raise misfit(f"einsum {subscripts!r}: labels are letters, and '...' stands once in an operand")
    free = [letter for letter in reversed(string.ascii_uppercase) if letter not in subscripts]
    widths = [tensor.ndim - len(term.replace("...", "")) for term, tensor in zip(terms, tensors, strict=True)]
    dots = max((width for term, width in zip(terms, widths, strict=True) if "..." in term), default=0)
    names = "".join(reversed(free[: max(dots, 0)]))
    inputs = [term.replace("...", names[dots - w :] if w > 0 else "") for term, w in zip(terms, widths, strict=True)]
    for term, tensor in zip(inputs, tensors, strict=True):
        _check_term(subscripts, term, tensor)
    if not arrow:
        counts = "".join(inputs)
        right = "..." + "".join(sorted(c for c in set(counts) - set(names) if counts.count(c) == 1))
    if names and "..." not in right:
        raise misfit(f"einsum {subscripts!r}: the output lacks the '...' of the operands")
    return inputs, right.replace("...", names)


def _check_term(subscripts: str, term: str, tensor: Any) -> None:
    """A label for each axis, and one size for each label."""
    if len(term) != tensor.ndim:
        raise misfit(f"einsum {subscripts!r}: {term!r} has {len(term)} labels for {type_of(tensor)}")
    sizes: dict[str, int] = {}
    for letter, size in zip(term, tensor.shape, strict=True):
        if sizes.setdefault(letter, size) != size:
            raise misfit(f"einsum {subscripts!r}: the axes {letter} of {type_of(tensor)} differ in size")


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
