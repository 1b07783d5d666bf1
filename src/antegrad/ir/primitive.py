"""The form in which every primitive is declared: type rule, NumPy text, StableHLO text and derivative in one class."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from antegrad.errors import RuleMissing
from antegrad.ir.code import Code, fill
from antegrad.ir.mlir import Emitter, signature
from antegrad.ir.types import TensorType

if TYPE_CHECKING:
    from antegrad.ir.program import Equation

REGISTRY: dict[str, Primitive] = {}
"""Every primitive by name."""


class Primitive:
    """One operation of the program language.

    A subclass states, in this order:

    - `result`: the type rule, ``(*operand types, **params) -> type`` or a tuple of types. It raises `ShapeError` or
      `DTypeError`; the caller's layer path and line are added to the message in one place (`ops.dispatch`).
    - `numpy`: the NumPy expression as a template over the parameter names of `result`; or the method `render`.
    - `stablehlo`: the name of the StableHLO operation when operands and result have one type; or the method `emit`.
    - `vjp`: the cotangents of the operands, ``(dy, y, *operands, **params)``, written with the same ops as user code;
      None for an operand that has no gradient. With several results `dy` and `y` are tuples, and a `dy` may be None.

    - `batch`: the same over a batch (`vmap`); without it the equation is looped over the batch.

    `helpers` are plain NumPy functions that the template calls; their source is printed at the head of the module.
    """

    name: ClassVar[str] = ""
    numpy: ClassVar[str] = ""
    stablehlo: ClassVar[str] = ""
    helpers: ClassVar[tuple[Callable, ...]] = ()
    broadcasts: ClassVar[bool] = False
    """Whether NumPy's implicit broadcasting may stand in for explicit broadcasts of the operands."""
    multiple_results: ClassVar[bool] = False
    """Whether `result` is a tuple of types, and a call gives a tuple of tensors."""
    differentiable: ClassVar[bool] = True
    """False for piecewise-constant results (comparisons, floor, argmax): no cotangent flows through."""
    reduces: ClassVar[bool] = False
    """Whether elements are combined along axes, by itself or inside of a longer function such as softmax."""
    elementwise: ClassVar[bool] = False
    """Whether operands and result have one shape, and an element depends on those at its place alone."""
    communicates: ClassVar[bool] = False
    """Whether the result depends on the operands of other ranks, or on which rank this is."""

    def __init_subclass__(cls) -> None:
        if not cls.__dict__.get("name"):
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()

    def __init__(self) -> None:
        REGISTRY[self.name] = self

    def result(self, *operands: Any, **params: Any) -> TensorType | tuple[TensorType, ...]:
        raise self.missing("result", "captured")

    def result_types(self, operands: Sequence[TensorType], params: Any) -> tuple[TensorType, ...]:
        """The types of all results."""
        result = self.result(*operands, **params)
        return (result,) if isinstance(result, TensorType) else result

    def render(self, equation: Equation, *operands: Code) -> Code:
        """The NumPy expression for `equation`, given the code of its operands.

        The functions that its sub-programs became come before the operands.
        """
        if not self.numpy:
            raise self.missing("numpy` or `render", "printed as Python or run on the host", equation.source)
        return fill(self.numpy, self.operand_names, operands, equation.params)

    def emit(self, emitter: Emitter, equation: Equation, *operands: str) -> str | tuple[str, ...]:
        """Append StableHLO operations to `emitter`; the names of the results."""
        if not self.stablehlo:
            raise self.missing("stablehlo` or `emit", "lowered to StableHLO", equation.source)
        types = signature(equation.input_types, equation.output_types)
        return emitter.op(f"stablehlo.{self.stablehlo} {', '.join(operands)} : {types}")

    def vjp(self, dy: Any, y: Any, *operands: Any, **params: Any) -> Any:
        raise self.missing("vjp` or `differentiable = False", "differentiated")

    def batch(self, *arguments: Any, **params: Any) -> Any:
        """``(size, operands, batched, **params)``: the results over a batch, the first axis of the flagged operands.

        Every result has the batch as its first axis. Without a rule `NotImplemented`: the equation is then looped.
        """
        return NotImplemented

    def flops(self, equation: Equation) -> int:
        """Floating-point operations of one execution; moves and integer work count nothing."""
        return 0

    def received(self, equation: Equation) -> int:
        """Bytes that one rank gets from the others in one execution."""
        return 0

    def traced_helpers(self) -> dict[str, Callable]:
        """What stands for each helper when a printed module is traced again; takes the helper's arguments."""
        return {helper.__name__: self for helper in self.helpers}  # pyright: ignore[reportReturnType]

    def missing(self, rule: str, use: str, source: object = "") -> RuleMissing:
        """The error for a rule that the class does not state, where a transformation asks for it."""
        return RuleMissing(
            f"primitive {self.name} cannot be {use}: its class {type(self).__qualname__} in {type(self).__module__} "
            f"states no rule for that. To mend it, write `{rule}` there, as ir/primitive.py describes"
            + (f"\n  at {source}" if str(source) else "")
        )

    @property
    def operand_names(self) -> tuple[str, ...]:
        """The positional parameters of the type rule, in order."""
        code = type(self).result.__code__
        return code.co_varnames[1 : code.co_argcount]

    def __reduce__(self) -> tuple[Callable[[str], Primitive], tuple[str]]:
        """Pickled by name: there is one instance of each primitive."""
        return _registered, (self.name,)

    def __deepcopy__(self, memo: Any) -> Primitive:
        return self

    def __repr__(self) -> str:
        return self.name


def _registered(name: str) -> Primitive:
    return REGISTRY[name]
