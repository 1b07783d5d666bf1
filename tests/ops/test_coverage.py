"""The tables leave nothing of `antegrad.ops` out: no public operation, no primitive, and no derivative of one."""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache
from pathlib import Path

import antegrad as ag
from antegrad import ops
from antegrad.ir.primitive import REGISTRY, Primitive
from tests.ops.certification import Case
from tests.ops.test_shape import MADE

ELSEWHERE = {
    "IndexUpdate": "the cases at_set and at_add",
    "name": "tests/test_capture.py; it computes nothing",
    "call": "tests of custom derivatives and rematerialisation, which are what makes it",
    "optimization_barrier": "tests/runtime/test_emission.py; it computes nothing",
    "threefry2x32": "tests/random",
    **dict.fromkeys(
        ["all_gather", "all_reduce", "all_to_all", "axis_index", "collective_permute", "reduce_scatter"],
        "tests/ops/test_collective.py; they need several ranks",
    ),
    "while": "it has no reverse mode; its values are in tests/ops/test_control.py, forward mode in tests/autodiff",
    "while_transpose": "it runs nowhere; tests/autodiff/test_control.py",
}
"""What has no case, or no derivative in a case, and where it is tested."""


@lru_cache(maxsize=1)
def tables() -> list[Case]:
    """The cases of every module beside this one."""
    names = [path.stem for path in sorted(Path(__file__).parent.glob("test_*.py")) if path.stem != "test_coverage"]
    return [case for name in names for case in getattr(importlib.import_module(f"tests.ops.{name}"), "CASES", [])]


def public() -> set[str]:
    """The names in `__all__` of every module of `antegrad.ops`, but primitives like `sort_p`, which functions hide."""
    modules = [importlib.import_module(f"antegrad.ops.{module.name}") for module in pkgutil.iter_modules(ops.__path__)]
    exported = {name: getattr(module, name) for module in modules for name in getattr(module, "__all__", [])}
    return {name for name, value in exported.items() if not isinstance(value, Primitive) or name == value.name}


def primitives(cases: list[Case]) -> set[str]:
    """The primitives of which the programs of `cases` consist."""
    programs = [ag.capture(case.call, *case.arrays) for case in cases]
    return {equation.primitive.name for program in programs for equation in program.all_equations()}


def test_every_operation_has_a_case() -> None:
    covered = {case.name for case in tables()} | {name.partition("-")[0] for name in MADE} | set(ELSEWHERE)
    assert not public() - covered - primitives(tables())


def test_every_primitive_has_a_case() -> None:
    assert not set(REGISTRY) - primitives(tables()) - set(ELSEWHERE)


def test_every_derivative_has_a_case() -> None:
    differentiable = {name for name, primitive in REGISTRY.items() if primitive.differentiable}
    assert not differentiable - primitives([case for case in tables() if case.differentiable]) - set(ELSEWHERE)
