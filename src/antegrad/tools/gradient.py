"""`check_gradient`: derivatives against finite differences, in double precision on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from antegrad import tree
from antegrad.autodiff.forward import jvp_program
from antegrad.autodiff.reverse import vjp_program
from antegrad.capture import capture
from antegrad.errors import AntegradError, DTypeError
from antegrad.ir.program import Program
from antegrad.ir.types import DTYPES, is_float

STEP = 6e-6
"""Relative step of the central differences: the cube root of the unit roundoff of f64, which balances both errors."""


class GradientMismatch(AntegradError, AssertionError):
    """A derivative that differs from finite differences; the message has the input, the entry and both values."""


@dataclass(frozen=True)
class GradientReport:
    """What `check_gradient` compared: how many entries, and the largest relative error of each kind."""

    entries: int
    worst: dict[str, float]

    def __str__(self) -> str:
        listed = ", ".join(f"{kind} {error:.1e}" for kind, error in self.worst.items())
        return f"gradient checked in f64 at {self.entries} entries; largest relative error: {listed}"


def check_gradient(
    function: Callable[..., Any], *args: Any, order: int = 2, tolerance: float = 1e-6, seed: int = 0
) -> GradientReport:
    """Compare the derivatives of `function` at `args` with central differences, in f64 on the host.

    `args` are pytrees; float leaves are converted to f64 and differentiated, others are passed on. Several or
    non-scalar results are weighted with fixed random numbers. Both reverse and forward mode are checked, and for
    ``order=2`` the derivatives of the gradient too. `tolerance` is relative to the size of the gradient.

    Raises `GradientMismatch` at the first entry that differs, naming the input, the entry and both values.
    """
    wide = tree.map(_to_f64, list(args))
    program = capture(function, *wide)
    arrays = [np.asarray(leaf) for leaf in tree.leaves(wide)]
    if not any(is_float(type.dtype) for type in program.input_types[: program.argument_count]):
        raise DTypeError(f"check_gradient: {program.name} has no float argument")
    checker = _Checker(tolerance, np.random.default_rng(seed))
    for level in range(1, order + 1):
        program = checker.check(program, arrays, level)
    return GradientReport(checker.entries, checker.worst)


def _to_f64(leaf: Any) -> Any:
    array = np.asarray(leaf)
    return array.astype(DTYPES["f64"]) if is_float(array.dtype) else array


class _Checker:
    def __init__(self, tolerance: float, rng: np.random.Generator) -> None:
        self.tolerance, self.rng = tolerance, rng
        self.entries = 0
        self.worst: dict[str, float] = {}

    def check(self, program: Program, arrays: Sequence[np.ndarray], level: int) -> Program:
        """Check one order of derivatives; the program of the weighted gradient, for the next order."""
        floats = [i for i, type in enumerate(program.input_types[: len(arrays)]) if is_float(type.dtype)]
        names = [program.input_names[i] for i in floats]
        weights = [self.rng.normal(size=t.shape) for t in program.output_types if is_float(t.dtype)]
        pullback = vjp_program(program, names)
        found = _run(pullback, [*arrays, *weights])[len(program.outputs) :]
        self._reverse(program, arrays, floats, weights, found, level)
        self._forward(program, arrays, floats, weights, found, level)
        return _gradient_of(pullback, len(program.outputs), len(arrays), weights)

    def _reverse(self, program: Program, arrays: Any, floats: Any, weights: Any, found: Any, level: int) -> None:
        for position, gradient in zip(floats, found, strict=True):
            scale = max(1.0, float(np.max(np.abs(gradient), initial=0)))
            for entry in np.ndindex(arrays[position].shape):
                numeric = _difference(program, arrays, weights, position, entry)
                self._compare(f"reverse, order {level}", program, position, entry, gradient[entry], numeric, scale)

    def _forward(self, program: Program, arrays: Any, floats: Any, weights: Any, found: Any, level: int) -> None:
        """<weights, J t> must be <J^T weights, t>, which reverse mode gave."""
        names = [program.input_names[i] for i in floats]
        tangents = [self.rng.normal(size=arrays[i].shape) for i in floats]
        pushed = _run(jvp_program(program, names), [*arrays, *tangents])[len(program.outputs) :]
        own = [t for t, type in zip(pushed, program.output_types, strict=True) if is_float(type.dtype)]
        forward = sum(float(np.sum(w * t)) for w, t in zip(weights, own, strict=True))
        reverse = sum(float(np.sum(g * t)) for g, t in zip(found, tangents, strict=True))
        scale = max(1.0, sum(float(np.sum(np.abs(g * t))) for g, t in zip(found, tangents, strict=True)))
        self._compare(f"forward, order {level}", program, floats[0], (), forward, reverse, scale)

    def _compare(
        self, kind: str, program: Program, position: int, entry: tuple, found: float, expected: float, scale: float
    ) -> None:
        error = abs(found - expected) / scale
        self.entries += 1
        self.worst[kind] = max(self.worst.get(kind, 0.0), error)
        if not error <= self.tolerance:
            place = f"input {program.input_names[position]} at {list(entry)}" if entry else program.name
            raise GradientMismatch(
                f"{kind}: {place}: the derivative is {float(found):.10g}, finite differences say {float(expected):.10g}"
            )


def _run(program: Program, arrays: Sequence[Any]) -> Sequence[np.ndarray]:
    return tree.leaves(program.run(*arrays, device="host"))


def _difference(program: Program, arrays: Any, weights: Any, position: int, entry: tuple) -> float:
    """The central difference of the weighted outputs in one entry of one input."""
    values = []
    point = float(arrays[position][entry])
    step = STEP * max(1.0, abs(point))
    for side in (point + step, point - step):
        moved = arrays[position].copy()
        moved[entry] = side
        outputs = _run(program, [*arrays[:position], moved, *arrays[position + 1 :]])
        own = [o for o, type in zip(outputs, program.output_types, strict=True) if is_float(type.dtype)]
        values.append(sum(float(np.sum(w * o)) for w, o in zip(weights, own, strict=True)))
    return (values[0] - values[1]) / ((point + step) - (point - step))


def _gradient_of(pullback: Program, outputs: int, inputs: int, weights: Sequence[np.ndarray]) -> Program:
    """The gradient as a program of the original inputs: the pullback with its cotangents fixed to the weights."""
    supplied, total = pullback.argument_count, len(pullback.inputs)
    order = [*range(inputs), *range(supplied, total), *range(inputs, supplied)]
    return replace(
        pullback,
        inputs=tuple(pullback.inputs[i] for i in order),
        input_names=tuple(pullback.input_names[i] for i in order),
        outputs=pullback.outputs[outputs:],
        output_names=pullback.output_names[outputs:],
        captured=(*pullback.captured, *weights),
    )
