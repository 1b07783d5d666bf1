"""A Program outside of antegrad: a function for JAX programs, an export for `jax.export`, a portable artifact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import export
from jaxlib.mlir.dialects import stablehlo

from antegrad import tree
from antegrad.errors import DTypeError
from antegrad.ir.program import Program, provide
from antegrad.runtime.lockstep import check_ranks
from antegrad.runtime.signature import Signature
from antegrad.runtime.xla import Module, program_p


def as_jax(program: Program) -> Callable[..., Any]:
    """A function of arrays of JAX (or pytrees of them) that computes `program`, also inside the caller's `jax.jit`.

    Types are checked as in `compile`: `ShapeError`, `DTypeError`. A Program with f64, i64 or u64 inputs or outputs
    needs JAX's x64 mode (`jax.enable_x64`), which antegrad does not change for the caller; without it, `DTypeError`.
    JAX cannot differentiate or vectorise the function: use `antegrad.reverse` first.
    """
    check_ranks(program, 1)
    signature, module = Signature.of(program), Module.of(program)
    types = (*program.input_types, *program.output_types)

    @jax.jit
    def bound(*leaves: Any) -> Any:
        return signature.result(program_p.bind(*leaves, *program.captured, module=module))

    def call(*arguments: Any) -> Any:
        for type in types:
            if jax.dtypes.canonicalize_dtype(type.dtype) != type.dtype:
                raise DTypeError(f"program {program.name} has {type}, which JAX would narrow: use jax.enable_x64(True)")
        return bound(*signature.checked(tree.leaves(arguments), traced=True))

    call.__name__ = call.__qualname__ = program.name
    call.__doc__ = f"{program!r}, for JAX programs."
    return call


def exported(program: Program, platforms: tuple[str, ...] = ("cpu", "cuda", "tpu")) -> export.Exported:
    """`program` for `jax.export`: ``.call(*arrays)`` runs it, ``.serialize()`` stores it for a JAX without antegrad.

    It takes the inputs that a caller supplies, one array each; captured arrays are inside. (``serialize`` needs the
    package flatbuffers.)
    """
    with jax.enable_x64(True):
        types = [jax.ShapeDtypeStruct(type.shape, type.dtype) for type in Signature.of(program).input_types]
        return export.export(jax.jit(as_jax(program)), platforms=platforms)(*types)


def portable(program: Program) -> bytes:
    """The StableHLO text of `program` as a portable artifact, which consumers of the last twelve weeks can read too.

    Captured arrays are trailing arguments of its ``main``, as in `Program.stablehlo`.
    """
    week_12 = stablehlo.StablehloCompatibilityRequirement.WEEK_12
    check_ranks(program, 1)
    version = stablehlo.get_version_from_compatibility_requirement(week_12)
    return stablehlo.serialize_portable_artifact_str(program.stablehlo(), version)


provide("as_jax", as_jax)
