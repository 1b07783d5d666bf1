"""The XLA devices: the StableHLO text of a Program, run through public JAX interfaces.

One JAX primitive stands for a whole Program. Its lowering parses the module text, merges it into the module that JAX
is building and calls its ``main``. So JAX compiles, places, donates and dispatches, and differentiates nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

from antegrad import tree
from antegrad.errors import DeviceError, ProgramError
from antegrad.ir.program import Equation, Program
from antegrad.ir.types import TensorType
from antegrad.runtime.device import DeviceInfo
from antegrad.runtime.lockstep import check_ranks
from antegrad.runtime.signature import Signature


@dataclass(frozen=True, eq=False)
class Module:
    """The text of a Program and the types of its outputs, as one parameter of the primitive."""

    name: str
    text: str
    output_types: tuple[TensorType, ...]

    @classmethod
    def of(cls, program: Program) -> Module:
        return cls(program.name, program.stablehlo(), program.output_types)

    def __repr__(self) -> str:
        return f"@{self.name}"


program_p = Primitive("antegrad_program")
program_p.multiple_results = True


@program_p.def_abstract_eval
def _output_avals(*_: Any, module: Module) -> list[ShapedArray]:
    return [ShapedArray(type.shape, type.dtype) for type in module.output_types]


def _lower(context: mlir.LoweringRuleContext, *operands: Any, module: Module) -> Sequence[ir.Value]:
    try:
        parsed = ir.Module.parse(module.text)
    except ir.MLIRError as error:
        raise ProgramError(f"program {module.name}: its StableHLO text does not parse: {error}") from None
    # The result types come from the parsed `main`, because JAX's helpers for them change between its releases.
    main = next(op for op in parsed.body.operations if ir.StringAttr(op.attributes["sym_name"]).value == "main")
    results = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value).results
    name = mlir.merge_mlir_modules(context.module_context.module, f"antegrad_{module.name}", parsed)
    return func.CallOp(list(results), ir.FlatSymbolRefAttr.get(name), list(operands)).results


mlir.register_lowering(program_p, _lower)


CPU_OPTIONS = {
    "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_DOT",
    "xla_allow_excess_precision": False,
    "xla_cpu_copy_insertion_use_region_analysis": True,
}
"""A rounding to bf16 or f16 that the program asks for is made, also where the next step widens the value again.

XLA finds out by regions what a loop may write in place. Otherwise it copies the moments of Adam in each step of a loop,
which takes a sixth of the processor time of an MLP's step (W1 of ``python -m benchmarks``).

XLA:CPU may hand reductions and convolutions to a library. For convolutions it takes longer than XLA's own loops do
(jax 0.10.2; with 0.12.0 both take the same)."""

LIBRARY_REDUCTION = 1 << 16
"""How many elements are summed at once where the library's reductions are quicker than XLA's loops.

A step of a ViT takes 0.91 of the time with them, one of the convolutional network W2 0.81; a step of the disc, which
sums some hundreds of numbers, takes 0.70 of the time without."""


@cache
def _known(name: str, value: Any) -> bool:
    """Whether the XLA that is installed knows an option."""
    try:
        jax.jit(lambda x: x, compiler_options={name: value}).lower(np.float32(0)).compile()
    except (RuntimeError, ValueError):
        return False
    return True


def default_options(platform: str, program: Program) -> Mapping[str, Any]:
    """What antegrad asks of XLA for `program` where the user says nothing; options that this XLA lacks are left out."""
    if platform != "cpu":
        return {}
    options = dict(CPU_OPTIONS)
    if any(_reduced(equation) >= LIBRARY_REDUCTION for equation in program.all_equations()):
        options["xla_cpu_experimental_ynn_fusion_type"] += ",LIBRARY_FUSION_TYPE_REDUCE"
    return known_options(options)


def known_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """`options` without those that the XLA that is installed lacks."""
    return {name: value for name, value in options.items() if _known(name, value)}


def _reduced(equation: Equation) -> int:
    """How many elements `equation` reduces."""
    return equation.input_types[0].size if equation.primitive.reduces else 0


class XlaExecutable:
    """A Program compiled for one device of JAX. It holds no Program, only its signature.

    `donate` lists positions of inputs whose memory the outputs take over; such an array is deleted by the call.
    Arrays captured by the Program are copied to the device once.
    """

    def __init__(
        self,
        program: Program,
        device: DeviceInfo,
        donate: Sequence[int] = (),
        compiler_options: Mapping[str, Any] | None = None,
    ) -> None:
        check_ranks(program, 1)
        self.signature = Signature.of(program)
        self.device = device
        self._donate = frozenset(donate)
        sharding = jax.sharding.SingleDeviceSharding(device.handle)
        jitted = jax.jit(
            _function(program, self.signature),
            in_shardings=sharding,
            out_shardings=sharding,
            donate_argnums=tuple(donate),
            compiler_options={**default_options(device.platform, program), **(compiler_options or {})} or None,
        )
        # Compiled ahead of time: exactly one executable, which refuses any other type. Without x64 JAX would narrow
        # f64, i64 and u64 in the types below; for other types the mode makes no difference.
        with jax.enable_x64(True):
            types = [jax.ShapeDtypeStruct(type.shape, type.dtype) for type in program.input_types]
            self.compiled = jitted.lower(*types).compile()
            self._captured = [jax.device_put(_private(array), device.handle) for array in program.captured]
            self._device_arrays = frozenset({type(jax.device_put(np.float32(0), device.handle))})

    def __call__(self, arguments: Sequence[Any]) -> Any:
        """The outputs, as arrays of JAX in the captured structure, for arguments that are leaves or pytrees.

        JAX's own dispatch compares the types, before anything is donated; what it refuses is looked at again here,
        for an error that names the input.
        """
        if self._device_arrays != frozenset(map(type, arguments)):
            arguments = self._ready(tree.leaves(arguments))
        try:
            return self.compiled(*arguments, *self._captured)
        except (TypeError, ValueError, RuntimeError):
            self._explain(self.signature.checked(arguments))
            raise

    def place(self, leaves: Sequence[Any]) -> list[Any]:
        """`leaves` with the arrays of JAX moved to this device."""
        return [jax.device_put(x, self.device.handle) if isinstance(x, jax.Array) else x for x in leaves]

    def _ready(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """`leaves` with all that is no array of JAX yet checked and made one, or an array that JAX will not cast."""
        self.signature.check_count(leaves)
        return [
            leaf if type(leaf) in self._device_arrays else self._put(self.signature.checked_leaf(position, leaf))
            for position, leaf in enumerate(leaves)
        ]

    def _put(self, leaf: Any) -> Any:
        if leaf.dtype.itemsize < 8:
            return _private(leaf)
        with jax.enable_x64(True):  # or else JAX would narrow it
            return jax.device_put(_private(leaf), self.device.handle)

    def _explain(self, leaves: Sequence[Any]) -> None:
        """Raise a `DeviceError` for an input that is deleted, elsewhere, or donated and used twice."""
        name, first = self.signature.name, {}
        for position, (own, leaf) in enumerate(zip(self.signature.input_names, leaves, strict=True)):
            if not isinstance(leaf, jax.Array):
                continue
            if leaf.is_deleted():
                raise DeviceError(
                    f"program {name}: input {own} has been deleted: an earlier call was given its memory (donate). "
                    "Use what that call returned, or compile without donating this input"
                )
            if leaf.devices() != {self.device.handle}:
                found = ", ".join(sorted(map(str, leaf.devices())))
                raise DeviceError(
                    f"program {name} is compiled for {self.device.name}, and input {own} lies on {found}: move it with "
                    "jax.device_put, or compile for that device"
                )
            twin = first.setdefault(id(leaf), position)
            if twin != position and {twin, position} & self._donate:
                raise DeviceError(
                    f"program {name}: inputs {self.signature.input_names[twin]} and {own} are one array, which cannot "
                    "be used twice when it is donated: pass a copy"
                )


def program_function(program: Program) -> Any:
    """`program` as a function that JAX can compile: its outputs, one after the other, for all its inputs."""
    module = Module.of(program)

    def call(*operands: Any) -> Any:
        return tuple(program_p.bind(*operands, module=module))

    call.__name__ = call.__qualname__ = program.name
    return call


def _function(program: Program, signature: Signature) -> Any:
    module = Module.of(program)

    def call(*operands: Any) -> Any:
        return signature.result(program_p.bind(*operands, module=module))

    call.__name__ = call.__qualname__ = program.name  # profilers and dumps show it
    return call


def _private(array: np.ndarray) -> np.ndarray:
    """A copy. JAX on the CPU reads NumPy's own memory and runs later, so it would see the caller's next write."""
    return np.array(array, order="C")
