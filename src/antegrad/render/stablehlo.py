"""A Program as StableHLO text, for XLA through PJRT and for any other tool that reads it."""

from __future__ import annotations

import re

from antegrad.ir.mlir import Emitter, tensor
from antegrad.ir.names import identifier
from antegrad.ir.program import Program, provide


def stablehlo(program: Program) -> str:
    """The module text: one public function ``main``, whose arguments and results are those of `program`, in order."""
    emitter = Emitter()
    arguments = [f"%arg{i}" for i in range(len(program.inputs))]
    results = emitter.body(program, arguments)
    types = [tensor(type) for type in program.output_types]
    parameters = ", ".join(f"{a}: {tensor(t)}" for a, t in zip(arguments, program.input_types, strict=True))
    returned = f"return {', '.join(results)} : {', '.join(types)}" if results else "return"
    body = "\n    ".join([*emitter.lines, returned])
    name = re.sub(r"\W", "_", identifier(program.name), flags=re.ASCII)
    private = "".join(f"  {function}\n" for function in emitter.functions.values())
    return (
        f"module @{name} {{\n"
        f"  func.func public @main({parameters}) -> ({', '.join(types)}) {{\n    {body}\n  }}\n{private}}}\n"
    )


provide("stablehlo", stablehlo)
