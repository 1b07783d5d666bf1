"""A Program as a Python module that needs NumPy alone. The host device executes this very text."""

from __future__ import annotations

import ast
import builtins
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from antegrad.ir.code import Code
from antegrad.ir.names import Namer, identifier
from antegrad.ir.primitive import REGISTRY
from antegrad.ir.program import Equation, Program, Source, Value, provide
from antegrad.ir.types import BF16
from antegrad.ops.constant import constant
from antegrad.ops.literals import filled_literal, scalar_literal
from antegrad.ops.shape import aligned, broadcast_in_dim, transpose_p
from antegrad.render.layout import LINE, broken, listed

WIDTH = 76
"""The longest expression on one line; longer ones are cut into steps."""
COMMENT_COLUMN = 56
_MOST_TYPES = 3

Shown = tuple[Code, tuple[int, ...]]
"""An operand as it is written, and the shape that NumPy sees there."""


def python(program: Program, inline: bool = True) -> str:
    """The source of a module with one function that computes `program`.

    A value that the user did not name and that is used once stands inside the expression that uses it; with
    ``inline=False`` every equation but a number has a line of its own, for stepping and blame.
    """
    functions = _Functions(inline)
    functions.add(program)
    body = "\n\n\n".join(functions.texts)
    helpers = [ast.unparse(printed_helper(helper)) for helper in _used_helpers(program, body)]
    types = {type.dtype for eq in program.all_equations() for type in (*eq.input_types, *eq.output_types)}
    imports = "import numpy as np\n"
    if BF16 in types and "bfloat16" in body:
        imports += "from ml_dtypes import bfloat16\n"
    head = f'"""The program `{program.name}` as NumPy; edit it and bring it back with `antegrad.from_python`."""\n'
    return "\n\n".join([head + "\n" + imports, *(f"{helper}\n" for helper in helpers), body + "\n"])


def _used_helpers(program: Program, body: str) -> list[Callable]:
    """The helpers that `body` calls, each after those that it calls itself."""
    primitives = {equation.primitive: None for equation in program.all_equations()}
    helpers = dict.fromkeys(helper for primitive in primitives for helper in primitive.helpers)
    called = [helper for helper in helpers if re.search(rf"\b{helper_name(helper)}\(", body)]
    return list(dict.fromkeys(each for helper in called for each in (*_inner_helpers(helper), helper)))


def _inner_helpers(helper: Callable) -> list[Callable]:
    """The helpers of other primitives that a helper calls."""
    names = helper.__code__.co_names
    return [helper.__globals__[name] for name in names if name.endswith("_helper") and name in helper.__globals__]


def helper_name(helper: Callable) -> str:
    """What a helper of a primitive is called in a printed module: its name without ``_helper``."""
    return helper.__name__.removesuffix("_helper")


def printed_helper(helper: Callable) -> ast.FunctionDef:
    """The definition of a helper as it is printed: under its printed name, and without annotations."""
    definition = ast.parse(textwrap.dedent(inspect.getsource(helper))).body[0]
    assert isinstance(definition, ast.FunctionDef)
    for node in ast.walk(definition):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.Name):
            node.id = node.id.removesuffix("_helper")
    definition.name = helper_name(helper)
    return definition


def _helper_names() -> set[str]:
    return {helper_name(helper) for primitive in REGISTRY.values() for helper in primitive.helpers}


class _Functions:
    """The functions of one module: those of sub-programs come before the one that calls them."""

    def __init__(self, inline: bool) -> None:
        self.inline = inline
        self.texts: list[str] = []
        self.names: dict[Program, str] = {}
        self.helpers = _helper_names()
        self.namer = Namer({*self.helpers, *dir(builtins)})  # helpers call builtins, which no function may hide

    def add(self, program: Program, nested: bool = False) -> str:
        """Render `program` unless that is done, and say what its function is called."""
        if program not in self.names:
            inner = [sub for equation in program.equations for sub in equation.programs]
            for sub in inner:
                self.add(sub, nested=True)
            name = self.names[program] = self.namer.name(identifier(program.name))
            self.texts.append(_Function(program, name, self, nested).text())
        return self.names[program]


@dataclass
class _Line:
    code: str
    comment: str
    part: str


@dataclass
class _Written:
    """What is known of a value that stands inside an expression: its code, and the equations inside."""

    code: Code
    inside: list[Equation] = field(default_factory=list)


class _Function:
    """Writes one Program as one function."""

    def __init__(self, program: Program, name: str, functions: _Functions, nested: bool) -> None:
        self.program, self.name, self.functions, self.nested = program, name, functions, nested
        self.namer = Namer({*functions.helpers, *functions.names.values()})
        self.producers = program.producers()
        self.uses = _effective_uses(program)
        self.lines: list[_Line] = []
        self.wishes = {v: identifier(n) for v, n in zip(program.outputs, program.output_names, strict=True)}
        self.written: dict[Value, _Written] = {}
        self.parameters = [self.namer.name(identifier(name)) for name in program.input_names]
        for value, parameter in zip(program.inputs, self.parameters, strict=True):
            self.written[value] = _Written(Code(parameter))

    def text(self) -> str:
        for equation in self.program.equations:
            self._write(equation)
        returned = [self._plain(value).text for value in self.program.outputs]
        if self.nested and len(returned) == 1:
            result = [f"    return ({returned[0]},)"]
        else:
            long = len(returned) > 1 and len(", ".join(returned)) > LINE - 11
            result = listed("    return (", returned, ")") if long else []
            result = result or [f"    return {', '.join(returned) or '()'}"]
        head = listed(f"def {self.name}(", self.parameters, "):")
        return "\n".join([*head, *self._docstring(), *self._body(), *result])

    def _write(self, equation: Equation) -> None:
        """Give the results of `equation` a code: an expression to stand inside others, or a line and a name."""
        if equation.primitive is constant and equation.output.type.ndim == 0 and not equation.output.declared:
            self.written[equation.output] = _Written(equation.primitive.render(equation), [])
            return
        code = self._fitted(equation)
        inside = [inner for value in equation.inputs for inner in self.written[value].inside]
        if self._is_inlined(equation):
            self.written[equation.output] = _Written(code, [*inside, equation])
        else:
            self._add_line(equation, code, inside)

    def _is_inlined(self, equation: Equation) -> bool:
        if equation.primitive.multiple_results or equation.output.declared or equation.output in self.wishes:
            return False
        if not self.functions.inline:
            return self._number(equation.output) is not None
        return self.uses[equation.output] == 1 or _is_view(equation)

    def _fitted(self, equation: Equation) -> Code:
        """The code of `equation`; operands that make it too long get a line of their own first."""
        code = self._expression(equation)
        while len(code.text) > WIDTH:
            nested = [v for v in equation.inputs if self.written[v].inside and not _is_view(self.producers[v])]
            if not nested:
                break
            longest = max(nested, key=lambda value: len(self.written[value].code.text))
            written = self.written[longest]
            self._add_line(self.producers[longest], written.code, written.inside[:-1])
            code = self._expression(equation)
        return code

    def _add_line(self, equation: Equation, code: Code, inside: Sequence[Equation]) -> None:
        names = [self._name(output) for output in equation.outputs]
        target = f"{names[0]}," if equation.primitive.multiple_results and len(names) == 1 else ", ".join(names)
        for output, name in zip(equation.outputs, names, strict=True):
            self.written[output] = _Written(Code(name))
        comment = _comment(equation, [*inside, equation])
        self.lines.append(_Line(f"{target} = {code.text}" if names else code.text, comment, equation.source.part))

    def _name(self, value: Value) -> str:
        wish = value.name if value.name else self.wishes.get(value)
        return self.namer.name(identifier(wish)) if wish else self.namer.name("t", numbered=True)

    def _expression(self, equation: Equation) -> Code:
        if equation.primitive.broadcasts:
            operands = self._broadcasting(equation)
        else:
            operands = [self._plain(value) for value in equation.inputs]
        number = self._number(equation.inputs[0]) if equation.primitive is broadcast_in_dim else None
        if number is not None:
            return filled_literal(number, equation.output.type.shape)
        functions = [Code(self.functions.add(program, nested=True)) for program in equation.programs]
        text, level = equation.primitive.render(equation, *functions, *operands)
        for helper in equation.primitive.helpers:
            text = text.replace(f"{helper.__name__}(", f"{helper_name(helper)}(")
        return Code(text, level)

    def _plain(self, value: Value) -> Code:
        """The code of a value with its full shape and type."""
        return self.written[value].code

    def _broadcasting(self, equation: Equation) -> list[Code]:
        """Operands of an elementwise operation, with broadcasts left to NumPy and constants as bare numbers."""
        shown = [self._unbroadcast(value) for value in equation.inputs]
        if np.broadcast_shapes(*(shape for _, shape in shown)) != equation.input_types[0].shape:
            shown[0] = (self._plain(equation.inputs[0]), equation.input_types[0].shape)
        literals = [self._literal(value) for value in equation.inputs]
        anchored = {v.type.dtype for v, literal in zip(equation.inputs, literals, strict=True) if literal is None}
        codes = []
        for value, (code, shape), literal in zip(equation.inputs, shown, literals, strict=True):
            bare = literal is not None and shape == () and value.type.dtype in anchored and value.type.dtype != BF16
            codes.append(literal if bare and literal is not None else code)
            if literal is not None:
                anchored.add(value.type.dtype)
        return codes

    def _unbroadcast(self, value: Value) -> Shown:
        producer = self.producers.get(value)
        if producer is None or producer.primitive is not broadcast_in_dim or not self.written[value].inside:
            return self._plain(value), value.type.shape
        dims, ndim = producer.params["dims"], len(producer.params["shape"])
        (source,) = producer.inputs
        sizes = dict(zip(dims, source.type.shape, strict=True))
        first = dims[0] if dims else ndim
        return aligned(self._plain(source), dims, ndim), tuple(sizes.get(axis, 1) for axis in range(first, ndim))

    def _literal(self, value: Value) -> Code | None:
        """The bare number of a scalar constant, broadcast or not."""
        number = self._number(value)
        return None if number is None else scalar_literal(number)

    def _number(self, value: Value) -> np.ndarray | None:
        producer = self.producers.get(value)
        while producer is not None and producer.primitive is broadcast_in_dim and not value.declared:
            value = producer.inputs[0]
            producer = self.producers.get(value)
        if producer is None or producer.primitive is not constant or value.type.ndim or value.declared:
            return None
        return producer.params["value"]

    def _docstring(self) -> list[str]:
        program, lines = self.program, []
        lines.append('    """Inputs:')
        captured = set(program.input_names[program.argument_count :])
        for parameter, name, value in zip(self.parameters, program.input_names, program.inputs, strict=True):
            notes = ([documented_name(name)] if name != parameter else []) + (["captured"] if name in captured else [])
            lines.append(f"        {parameter}: {value.type}" + (f"  ({', '.join(notes)})" if notes else ""))
        lines.append("    Returns:")
        outputs = zip(program.output_names, program.outputs, strict=True)
        lines += [f"        {documented_name(name)}: {value.type}" for name, value in outputs]
        return [*lines, '    """']

    def _body(self) -> list[str]:
        column = min(max((len(line.code) for line in self.lines), default=0), COMMENT_COLUMN)
        parts = dict.fromkeys(line.part for line in self.lines)
        out, section = [], "forward" if len(parts) == 1 else ""
        for line in self.lines:
            if line.part != section:
                section = line.part
                out.append(f"    # {section}")
            *above, last = broken(line.code)
            out += above
            out.append(f"    {last:<{column}}  # {line.comment}")
        return out


def documented_name(name: str) -> str:
    """A name as a docstring can hold it: as it is where it is plain, else a JSON string, which cannot end the text."""
    return name if re.fullmatch(r"[\w.]+", name, re.ASCII) else json.dumps(name).replace("\\", "\\\\")


def _is_view(equation: Equation) -> bool:
    """Whether NumPy gives a view, so that writing the expression again at each use costs nothing."""
    return equation.primitive is broadcast_in_dim or equation.primitive is transpose_p


def _effective_uses(program: Program) -> dict[Value, int]:
    """How often each value is read when views are written again at each of their uses."""
    uses = dict.fromkeys((v for equation in program.equations for v in equation.outputs), 0)
    uses.update(dict.fromkeys(program.inputs, 0))
    for value in program.outputs:
        uses[value] += 1
    for equation in reversed(program.equations):
        repeated = _is_view(equation) and not equation.output.declared and equation.output not in program.outputs
        for value in equation.inputs:
            uses[value] += uses[equation.output] if repeated else 1
    return uses


def _comment(equation: Equation, inside: Sequence[Equation]) -> str:
    types = [str(value.type) for value in equation.outputs]
    listed = ", ".join(types) if len(types) <= _MOST_TYPES else f"{len(types)} values"
    layers = sorted({inner.source.layer for inner in inside if inner.source.layer}, key=_natural)
    layer = "-".join(dict.fromkeys([layers[0], layers[-1]])) if layers else ""
    source = next((inner.source for inner in reversed(inside) if inner.source.file), Source())
    return "  ".join(part for part in (listed, layer, source.location) if part)


def _natural(layer: str) -> list[tuple[int, str]]:
    """Sorts ``blocks.2`` before ``blocks.10``."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in layer.split(".")]


provide("python", python)
