"""The form of a certified case, and the checks that each one goes through.

A case is one operation with operands and parameters, written in one line of a table. It is computed at once on NumPy
arrays, as a captured program on every device, and by JAX in f64 from the same operands; its gradient and second
derivative come from `ag.reverse`, from JAX, and the gradient also from finite differences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

import antegrad as ag
from antegrad import ops, tree
from antegrad.ir.program import Program
from antegrad.ir.types import DTYPES, SHORT_NAMES, is_float
from tests.support import (
    DIFFERENCE,
    FUNCTION,
    GRADIENT_EPS,
    SUM,
    ULPS,
    array,
    assert_close,
    assert_same_bits,
    assert_within,
    describe,
    devices,
    run,
)

GROUPS = {
    "F": ("f64", "f32", "bf16", "f16"),
    "D": ("f64", "f32"),
    "I": ("i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8"),
    "M": ("f64", "f32", "bf16", "i32", "u8", "bool"),
    "N": ("f64", "f32", "bf16", "f16", "i64", "i32", "u32", "u8"),
    "A": ("f64", "f32", "bf16", "f16", "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8", "bool"),
}
"""Letters that stand for several element types in the text of operands."""

DIFFERENTIATED = ("f64", "bf16")
"""Of the types that a letter stands for, those whose derivatives are certified; the rules are the same for all."""


@dataclass(frozen=True)
class Case:
    """One line of a table; see `cases`."""

    name: str
    operands: tuple[str, ...]
    params: dict[str, Any]
    function: Callable[..., Any]
    reference: Callable[..., Any]
    bound: str = FUNCTION
    out: str | None = None
    sequence: bool = False
    derivative: bool = True
    differences: bool = True
    wide: bool = True
    signs: bool = False

    def __str__(self) -> str:
        params = ",".join(f"{key}={value}" for key, value in self.params.items())
        return "-".join(filter(None, [self.name, "_".join(self.operands), params])).replace(" ", ",")

    @cached_property
    def arrays(self) -> list[np.ndarray]:
        return [array(text, f"{self.name} {i}") for i, text in enumerate(self.operands)]

    @property
    def differentiable(self) -> bool:
        """Whether `check_derivatives` applies."""
        return self.derivative and bool(self.floats) and self.out in (None, "jax", *GROUPS["F"])

    @property
    def floats(self) -> list[int]:
        """The positions of the float operands."""
        return [i for i, operand in enumerate(self.arrays) if is_float(operand.dtype)]

    def call(self, *arrays: Any) -> Any:
        return self.function(list(arrays), **self.params) if self.sequence else self.function(*arrays, **self.params)

    def ask_jax(self, *arrays: Any) -> list[Any]:
        found = self.reference(list(arrays), **self.params) if self.sequence else self.reference(*arrays, **self.params)
        return jax.tree_util.tree_leaves(found)

    def widened(self) -> list[np.ndarray]:
        """The operands with floats as f64, which changes no value."""
        return [a.astype(np.float64) if self.wide and is_float(a.dtype) else a for a in self.arrays]


def cases(
    name: str,
    *operands: str,
    of: Callable[..., Any] | None = None,
    jax: Callable[..., Any] | None = None,
    bound: str = FUNCTION,
    out: str | None = None,
    sequence: bool = False,
    derivative: bool = True,
    differences: bool = True,
    wide: bool = True,
    signs: bool = False,
    **params: Any,
) -> list[Case]:
    """The cases of one line: operation `name` on `operands` such as ``F[3,4]:0.5:2``, for each type that F stands for.

    - `of` and `jax`: the functions to compare; by default `name` in `antegrad.ops` and in `jax.numpy`.
    - `bound`: a row of `ULPS`.
    - `out`: the element type of the results where it is not that of the first operand: a name, the letter of the
      operands, or "jax" for the types that JAX gives.
    - `sequence`: pass the operands as one list.
    - `derivative`, `differences`: whether there is a derivative, and one that finite differences can see.
    - `wide`: let JAX compute in f64.
    - `signs`: compare the signs of zeros too.
    - `params`: for both functions.
    """
    letters = {text[0] for text in operands if text[0] in GROUPS}
    assert len(letters) <= 1, f"{name}: one letter for element types a line, found {letters}"
    function, reference = of or getattr(ops, name), jax or getattr(jnp, name)
    flags = (differences, wide, signs)
    expanded = [(operands, out, derivative)]
    for letter in letters:
        expanded = [
            (
                tuple(dtype + text[1:] if text[0] == letter else text for text in operands),
                dtype if out == letter else out,
                derivative and dtype in DIFFERENTIATED,
            )
            for dtype in GROUPS[letter]
        ]
    return [
        Case(name, texts, params, function, reference, bound, dtype, sequence, has, *flags)
        for texts, dtype, has in expanded
    ]


def in_f64(function: Callable[..., Any], *arrays: Any) -> list[np.ndarray]:
    """A JAX function compiled for the CPU with 64-bit types."""
    with jax.enable_x64(True), jax.default_device(jax.local_devices(backend="cpu")[0]):
        return [np.asarray(result) for result in jax.tree_util.tree_leaves(jax.jit(function)(*arrays))]


def check_forward(case: Case) -> None:
    """At once, captured on the host (the same bits), and on every other device, against JAX."""
    truth = in_f64(case.ask_jax, *case.widened())
    scale = in_f64(case.ask_jax, *(abs(a) for a in case.widened())) if case.bound == SUM else truth
    at_once = tree.leaves(case.call(*case.arrays))
    program = ag.capture(case.call, *case.arrays)
    for device in devices():
        results = run(program, case.arrays, device)
        assert len(results) == len(truth), f"{device}: {len(results)} results, JAX gives {len(truth)}"
        for result, early, expected, size in zip(results, at_once, truth, scale, strict=True):
            if device == "host":
                assert_same_bits(result, early, "host against at once")
            _check_result(case, result, expected, size, device)


def _check_result(case: Case, result: np.ndarray, expected: np.ndarray, scale: np.ndarray, device: str) -> None:
    dtype = expected.dtype if case.out == "jax" else DTYPES[case.out] if case.out else case.arrays[0].dtype
    assert result.shape == expected.shape, f"{device}: found shape {result.shape}, expected {expected.shape}"
    assert result.dtype == dtype, f"{device}: found {result.dtype}, expected {dtype}"
    if is_float(dtype):
        allowed = ULPS[case.bound][SHORT_NAMES[dtype]]
        truth, scale = expected.astype(np.float64), scale.astype(np.float64)
        flushed = device != "host"  # XLA on the CPU takes subnormal numbers for 0
        assert_within(result, truth, allowed, device, signs=case.signs, flushed=flushed, scale=scale)
    else:
        assert (result == expected).all(), f"{device}: found\n{result}\nexpected\n{expected}"


@dataclass
class Derivatives:
    """The programs of one case's derivatives: of ``sum(weights * result)``, and of ``sum(weights * gradient)``."""

    case: Case
    weights: list[np.ndarray] = field(default_factory=list)

    def of_results(self, *xs: Any) -> Any:
        return self.weighted(ops, self.case.call(*xs), 0)

    @cached_property
    def loss(self) -> Program:
        return ag.capture(self.of_results, *self.case.arrays)

    @cached_property
    def gradient(self) -> Program:
        return ag.reverse(self.loss)

    @cached_property
    def second(self) -> Program:
        """Its outputs: the sum, every first gradient, every second one."""

        def of_gradient(*xs: Any) -> Any:
            gradients = ag.grad(self.of_results, self.case.floats)(*xs)
            return self.weighted(ops, gradients, 100), *gradients

        return ag.reverse(ag.capture(of_gradient, *self.case.arrays))

    def weighted(self, library: Any, results: Any, first: int) -> Any:
        """The sum of all float elements of `results`, each with a fixed weight."""
        total = None
        for position, result in enumerate(jax.tree_util.tree_leaves(results)):
            if is_float(np.dtype(result.dtype)):
                weights = self.weight(result.shape, first + position).astype(result.dtype)
                part = library.sum(result * weights)
                total = part if total is None else total + part
        return total

    def weight(self, shape: Sequence[int], position: int) -> np.ndarray:
        """Weights of 16-bit precision, so that every float type holds them; none is near 0."""
        text = f"bf16[{','.join(map(str, shape))}]:0.5:2"
        return array(text, f"weight {position}").astype(np.float64)

    def expected(self, second: bool) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """First and second derivatives by JAX in f64."""
        case = self.case

        def loss(*xs: Any) -> Any:
            return self.weighted(jnp, case.ask_jax(*xs), 0)

        def of_gradient(*xs: Any) -> Any:
            gradients = jax.grad(loss, case.floats)(*xs)
            return self.weighted(jnp, gradients, 100), gradients

        function = jax.grad(of_gradient, case.floats, has_aux=True) if second else lambda *xs: ((), of_gradient(*xs)[1])
        found = in_f64(function, *case.widened())
        count = len(case.floats)
        return found[-count:], found[:-count]


def check_derivatives(case: Case) -> None:
    """The gradient against JAX on every device; in f64 against finite differences, and the second derivative too."""
    derivatives = Derivatives(case)
    dtype = case.arrays[case.floats[0]].dtype
    twice = dtype == DTYPES["f64"]
    first, second = derivatives.expected(twice)
    allowed = GRADIENT_EPS[SHORT_NAMES[dtype]] * float(ml_dtypes.finfo(dtype).eps)
    program = derivatives.second if twice else derivatives.gradient
    for device in devices():
        outputs = run(program, case.arrays, device)[1:]
        for position, (found, expected) in enumerate(zip(outputs, [*first, *second], strict=True)):
            order, operand = divmod(position, len(case.floats))
            what = f"{device}, derivative {order + 1} by operand {case.floats[operand]}"
            assert (found.shape, found.dtype) == (expected.shape, dtype), f"{what}: found {describe(found)}"
            largest = max(np.max(np.abs(gradient), initial=0) for gradient in first) if order else 0
            assert_close(found, expected, allowed, what, largest)
    if case.differences and twice:
        check_differences(derivatives, first)


def check_differences(derivatives: Derivatives, gradients: list[np.ndarray]) -> None:
    """The gradient of each float element against central differences of fourth order on the host."""
    case, step = derivatives.case, 1e-3

    def loss(operand: int, place: int, change: float) -> float:
        moved = [a.copy() for a in case.arrays]
        moved[operand].reshape(-1)[place] += change
        return float(run(derivatives.loss, moved, "host")[0])

    for operand, gradient in zip(case.floats, gradients, strict=True):
        slopes = np.zeros(gradient.size)
        for place in range(gradient.size):
            near = loss(operand, place, step) - loss(operand, place, -step)
            far = loss(operand, place, 2 * step) - loss(operand, place, -2 * step)
            slopes[place] = (8 * near - far) / (12 * step)
        what = f"finite differences by operand {operand}"
        assert_close(slopes.reshape(gradient.shape), gradient, DIFFERENCE, what)
