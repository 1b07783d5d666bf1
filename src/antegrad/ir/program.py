"""Program: an immutable, typed list of equations in single static assignment form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from antegrad.errors import NameMissing, ProgramError
from antegrad.ir.types import TensorType

if TYPE_CHECKING:
    from antegrad.ir.primitive import Primitive


@dataclass(frozen=True, slots=True)
class Source:
    """Where an equation comes from: the user's file and line, the layer path, and the part of the training step."""

    file: str = ""
    line: int = 0
    layer: str = ""
    part: str = "forward"
    """``forward``, ``backward`` or ``update``."""

    @property
    def location(self) -> str:
        """``disc.py:41``, or nothing when the line is not known."""
        return f"{self.file.rsplit('/', 1)[-1].rsplit(chr(92), 1)[-1]}:{self.line}" if self.file else ""

    def __str__(self) -> str:
        layer = f"layer {self.layer}" if self.layer else ""
        return ", ".join(part for part in (layer, f"{self.file}:{self.line}" if self.file else "") if part)


class Value:
    """One typed value of a Program; two values are the same only if they are the same object.

    `name` is what the renderers try to call it: None for an unnamed value. `declared` says that the user gave the
    name to a variable, so that the value keeps a line of its own when it is printed. Both are set only while the
    value's Program is being built.
    """

    __slots__ = ("declared", "name", "type")

    def __init__(self, type: TensorType, name: str | None = None, declared: bool = False) -> None:
        self.type = type
        self.name = name
        self.declared = declared

    def __repr__(self) -> str:
        return f"{self.name or '_'}: {self.type}"


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Equation:
    """`outputs = primitive(*inputs, **params)`. Sub-programs of control flow stand among the params."""

    primitive: Primitive
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    params: Mapping[str, Any]
    source: Source

    def __post_init__(self) -> None:
        if not isinstance(self.params, MappingProxyType):
            object.__setattr__(self, "params", MappingProxyType(dict(self.params)))
            _freeze(self.params.values())

    def __reduce__(self) -> tuple[type[Equation], tuple[Any, ...]]:
        return Equation, (self.primitive, self.inputs, self.outputs, dict(self.params), self.source)

    @property
    def output(self) -> Value:
        """The only output."""
        (output,) = self.outputs
        return output

    @property
    def input_types(self) -> tuple[TensorType, ...]:
        return tuple(value.type for value in self.inputs)

    @property
    def output_types(self) -> tuple[TensorType, ...]:
        return tuple(value.type for value in self.outputs)

    @property
    def programs(self) -> tuple[Program, ...]:
        """The sub-programs among the params, in order."""
        return tuple(program for param in self.params.values() for program in _programs_in(param))


def _freeze(values: Iterable[Any]) -> None:
    """Make arrays read-only: a Program does not change."""
    for value in values:
        if isinstance(value, np.ndarray):
            value.flags.writeable = False


def _programs_in(param: Any) -> Iterator[Program]:
    if isinstance(param, Program):
        yield param
    elif isinstance(param, tuple):
        for item in param:
            yield from _programs_in(item)


@dataclass(frozen=True, eq=False)
class Program:
    """An immutable typed program with named inputs and outputs.

    `captured` holds the arrays of the last ``len(captured)`` inputs: read-only copies of constants from outside the
    captured function that were too large to embed. They are supplied when the program runs, and shown as inputs when
    it prints.
    `structure` is the pytree of the outputs when the program was captured from a Python function, else None.
    """

    name: str
    inputs: tuple[Value, ...]
    input_names: tuple[str, ...]
    outputs: tuple[Value, ...]
    output_names: tuple[str, ...]
    equations: tuple[Equation, ...]
    captured: tuple[np.ndarray, ...] = ()
    structure: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.input_names) or len(self.outputs) != len(self.output_names):
            raise ProgramError(f"program {self.name}: as many names as inputs and outputs are needed")
        from antegrad.ir.check import check

        check(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _freeze(self.captured)

    @property
    def input_types(self) -> tuple[TensorType, ...]:
        return tuple(value.type for value in self.inputs)

    @property
    def output_types(self) -> tuple[TensorType, ...]:
        return tuple(value.type for value in self.outputs)

    @property
    def argument_count(self) -> int:
        """How many inputs a caller supplies: all but the captured ones."""
        return len(self.inputs) - len(self.captured)

    def input_index(self, name: str) -> int:
        """Position of the input called `name`; a `NameMissing` that lists the names when there is none."""
        if name in self.input_names:
            return self.input_names.index(name)
        raise NameMissing(f"program {self.name} has no input {name!r}; it has {', '.join(self.input_names)}")

    def named(self, name: str) -> Program:
        """The same program under another name."""
        return replace(self, name=name)

    def producers(self) -> dict[Value, Equation]:
        """Which equation defines each value."""
        return {output: equation for equation in self.equations for output in equation.outputs}

    def all_equations(self) -> Iterator[Equation]:
        """Every equation, those of sub-programs included."""
        for equation in self.equations:
            yield equation
            for program in equation.programs:
                yield from program.all_equations()

    def python(self, inline: bool = True) -> str:
        """The program as the source of a Python module that needs NumPy alone (see `render.python`)."""
        return _services["python"](self, inline)

    def stablehlo(self) -> str:
        """The program as StableHLO text (see `render.stablehlo`)."""
        return _services["stablehlo"](self)

    def cost(self) -> Any:
        """FLOPs, bytes and live memory by layer and in total (see `ir.cost`)."""
        return _services["cost"](self)

    def run(self, *arguments: Any, device: str | None = None) -> Any:
        """The outputs for arrays, or pytrees of arrays, in the order of the inputs (see `runtime.run`).

        The result has the structure that the captured function returned; a program made by a pass gives a tuple, or
        the one array when it has one output. `device` is a name such as ``"host"`` or ``"cpu"``.
        """
        return _services["run"](self, arguments, device)

    def __call__(self, *arguments: Any) -> Any:
        """`run` on the default device; inside a capture the equations of this program, copied into the other."""
        return _services["call"](self, arguments)

    def blame(self, *arguments: Any) -> Any:
        """The equation that first makes a NaN or infinity of the results for `arguments` (see `tools.blame`)."""
        return _services["blame"](self, *arguments)

    def function(self) -> Callable[..., Any]:
        """The function that `python` prints and the host device runs, on NumPy arrays: set a breakpoint in it."""
        return _services["function"](self)

    def as_jax(self) -> Callable[..., Any]:
        """The program as a function of JAX arrays, for use inside a JAX program (see `runtime.artifact`)."""
        return _services["as_jax"](self)

    def __str__(self) -> str:
        from antegrad.ir.text import text

        return text(self)

    def __repr__(self) -> str:
        inputs = ", ".join(f"{n}: {v.type}" for n, v in zip(self.input_names, self.inputs, strict=True))
        outputs = ", ".join(f"{n}: {v.type}" for n, v in zip(self.output_names, self.outputs, strict=True))
        return f"<Program {self.name}({inputs}) -> ({outputs}), {len(self.equations)} equations>"


_services: dict[str, Callable[..., Any]] = {}


def provide(method: str, function: Callable[..., Any]) -> None:
    """Called once by the layer that implements one of the methods of `Program`, which `ir` knows nothing of."""
    _services[method] = function


def params_key(params: Mapping[str, Any]) -> tuple:
    """A hashable stand-in for the params of an equation: equal keys mean equal params, bit for bit."""
    return tuple((name, _hashable(value)) for name, value in params.items())


def _hashable(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return (value.dtype.str, str(value.dtype), value.shape, value.tobytes())
    return value

