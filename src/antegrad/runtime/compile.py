"""`compile`: a Program, or a Python function, made ready to be called again and again on one device."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from antegrad import tree
from antegrad.capture import Traced, argument_names, positional, trace
from antegrad.errors import DeviceError, NameMissing, ShapeError, TraceError
from antegrad.ir.program import Program, provide
from antegrad.ir.types import type_of
from antegrad.ops.dispatch import apply, current_builder, untraced
from antegrad.ops.tensor import Tensor
from antegrad.runtime import host
from antegrad.runtime.device import DeviceInfo, resolve
from antegrad.runtime.finite import CheckedExecutable, with_finite_flag
from antegrad.runtime.lockstep import check_ranks
from antegrad.runtime.signature import Signature
from antegrad.runtime.xla import XlaExecutable

logger = logging.getLogger("antegrad")


class HostExecutable:
    """A Program on the host device, called as an `XlaExecutable` is; the outputs are NumPy arrays."""

    def __init__(self, program: Program) -> None:
        check_ranks(program, 1)
        self.signature = Signature.of(program)
        self._program = program

    def __call__(self, arguments: Sequence[Any]) -> Any:
        arrays = [np.asarray(leaf) for leaf in self.signature.checked(tree.leaves(arguments))]
        return self.signature.result(host.run(self._program, [*arrays, *self._program.captured]))


Executable = XlaExecutable | HostExecutable | CheckedExecutable


def compile(
    target: Program | Callable[..., Any],
    *,
    device: str | DeviceInfo | None = None,
    donate: Iterable[str] = (),
    compiler_options: Mapping[str, Any] | None = None,
    check_finite: bool = False,
) -> Compiled:
    """`target` on `device` (the default device if None), as something to call.

    A Program is compiled at once, and has one executable for ever: a call whose arguments differ from its inputs in
    number, shape or element type is refused before anything is lost. A Python function of pytrees of arrays is
    captured and compiled for each new set of types; from the second on, the logger ``antegrad`` says which argument
    changed.

    Arguments are arrays of NumPy or JAX, Python numbers for scalars, or pytrees of these. Results are arrays of JAX
    (of NumPy on the host) in the structure that the function returned; a Program made by a pass gives a tuple, or
    the one array when it has one output.

    `donate` names inputs, or prefixes of them, whose memory the results take over; for a function it names arguments.
    A donated array of JAX is deleted by the call. On the host nothing is donated. `compiler_options` go to XLA as
    they are, as in `jax.jit`.

    With `check_finite` a call whose results hold a NaN or an infinity raises `NonFiniteError`, which names the
    equation that made the first of them (see `ag.blame`). The program gets one more output for that, and nothing is
    donated, because the arguments are needed once more to find that equation.

    Raises `DeviceError` for a device that is not to be had, `NameMissing` for a name in `donate` that is none, and
    `ShapeError` for a donated input whose type no output has.
    """
    names = (donate,) if isinstance(donate, str) else tuple(donate)
    settings = _Settings(resolve(device), names, compiler_options, check_finite)
    return CompiledProgram(target, settings) if isinstance(target, Program) else CompiledFunction(target, settings)


class _Settings:
    """Where and how to compile."""

    def __init__(
        self, device: DeviceInfo, donate: tuple[str, ...], options: Mapping[str, Any] | None, check_finite: bool
    ) -> None:
        self.device, self.donate, self.options, self.check_finite = device, donate, options, check_finite

    def executable(self, program: Program, donate: Sequence[int]) -> Executable:
        Signature.of(program).check_donation(donate)
        if self.check_finite:
            return CheckedExecutable(program, self._plain(with_finite_flag(program), ()))
        return self._plain(program, donate)

    def _plain(self, program: Program, donate: Sequence[int]) -> HostExecutable | XlaExecutable:
        if self.device.handle is None:
            return HostExecutable(program)
        return XlaExecutable(program, self.device, donate, self.options)


class Compiled(ABC):
    """What `compile` returns: call it with arrays or pytrees of arrays.

    `program` is the Program that was compiled last, `device` where it runs. `compilations` has a line for each
    executable: what it is for, and from the second on what changed.
    """

    program: Program

    def __init__(self, settings: _Settings) -> None:
        self.device = settings.device
        self.compilations: list[str] = []
        self._settings = settings
        self._latest: Executable | None = None

    @property
    def executables(self) -> int:
        """How many executables have been compiled so far."""
        return len(self.compilations)

    @abstractmethod
    def __call__(self, *arguments: Any) -> Any:
        """The results for arrays or pytrees of arrays."""

    def hlo(self) -> str:
        """The optimized HLO text of the latest executable. Raises `DeviceError` on the host, or before a first call."""
        return self._xla().compiled.as_text() or ""

    def memory(self) -> Any:
        """JAX's account of the memory of the latest executable, in bytes. Raises `DeviceError` as `hlo` does."""
        return self._xla().compiled.memory_analysis()

    def _xla(self) -> XlaExecutable:
        latest = self._latest.inner if isinstance(self._latest, CheckedExecutable) else self._latest
        if isinstance(latest, XlaExecutable):
            return latest
        reason = "nothing has been compiled yet" if self._latest is None else "the host runs program.python()"
        raise DeviceError(f"{self!r} has no XLA executable: {reason}")


class CompiledProgram(Compiled):
    """A Program with its one executable."""

    def __init__(self, program: Program, settings: _Settings) -> None:
        super().__init__(settings)
        self.program = program
        self._executable = self._latest = settings.executable(
            program, Signature.of(program).positions(settings.donate)
        )
        self.compilations.append(f"compiled {program.name} for {self._executable.signature} on {self.device.name}")

    def __call__(self, *arguments: Any) -> Any:
        return self._executable(arguments)

    def __repr__(self) -> str:
        return f"<Compiled {self.program!r} on {self.device.name}>"


class CompiledFunction(Compiled):
    """A Python function with an executable for each set of types that it was called with."""

    def __init__(self, function: Callable[..., Any], settings: _Settings) -> None:
        super().__init__(settings)
        self._function = function
        self._name = getattr(function, "__name__", type(function).__name__)
        self._lock = threading.Lock()
        self._by_types: dict[tuple, Executable] = {}
        self._by_leaves: dict[tuple, Executable] = {}

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        function, arguments = positional(self._function, arguments, keywords)
        leaves, structure = tree.flatten(arguments)
        key = (structure, function is self._function, *map(_leaf_key, leaves))
        executable = self._by_leaves.get(key)
        if executable is None:
            executable = self._by_leaves[key] = self._for_types(function, arguments, leaves, structure)
        return executable(leaves)

    def _for_types(
        self, function: Callable[..., Any], arguments: Sequence[Any], leaves: Sequence[Any], structure: tree.Structure
    ) -> Executable:
        """The executable for the types of `leaves`, compiled when there is none."""
        if any(isinstance(leaf, Tensor) for leaf in leaves):
            raise TraceError(f"{self._name}: a compiled function cannot be captured; call the function itself there")
        types = tuple(map(type_of, leaves))
        key = structure, function is self._function, types
        with self._lock, untraced():
            if key not in self._by_types:
                traced = trace(function, *tree.unflatten(structure, types))
                executable = self._settings.executable(traced.program, self._donated(traced, len(arguments)))
                self._note(executable.signature, structure)
                self._by_types[key] = self._latest = executable
                self.program = traced.program
            return self._by_types[key]

    def _donated(self, traced: Traced, count: int) -> list[int]:
        """The positions of the inputs that belong to the donated arguments."""
        names = argument_names(self._function, count)
        for name in self._settings.donate:
            if name not in names:
                raise NameMissing(f"donate: {self._name} has no argument {name!r}; it has {', '.join(names)}")
        ranges = zip(names, traced.argument_inputs, strict=True)
        return [position for name, own in ranges if name in self._settings.donate for position in own]

    def _note(self, new: Signature, structure: tree.Structure) -> None:
        """Add the line for one more executable, and log it when it is not the first."""
        if not self._by_types:
            self.compilations.append(f"compiled {self._name} for {new} on {self.device.name}")
            return
        known = [(_changes(old.signature, new), key[0]) for key, old in self._by_types.items()]
        changes, old_structure = min(known, key=lambda pair: len(pair[0]))
        reason = "; ".join(changes) or f"the containers of the arguments were {old_structure} and are {structure}"
        self.compilations.append(f"{self._name} is compiled again: {reason}")
        logger.warning("%s", self.compilations[-1])

    def __repr__(self) -> str:
        return f"<Compiled {self._name} on {self.device.name}, {self.executables} executables>"


def _leaf_key(leaf: Any) -> Any:
    """Equal for two leaves only if their types are equal; cheap, because every call asks."""
    try:
        return leaf.shape, leaf.dtype
    except AttributeError:
        return type(leaf)


def _changes(old: Signature, new: Signature) -> list[str]:
    """``argument x was f32[4,2] and is f32[8,2]`` for every input that changed, came or went."""
    before = dict(zip(old.input_names, old.input_types, strict=True))
    after = dict(zip(new.input_names, new.input_types, strict=True))
    changed = [f"argument {n} was {before[n]} and is {t}" for n, t in after.items() if n in before and before[n] != t]
    changed += [f"argument {name} ({type}) is new" for name, type in after.items() if name not in before]
    return changed + [f"argument {name} ({type}) is gone" for name, type in before.items() if name not in after]


_run_cache: WeakKeyDictionary[Program, dict[DeviceInfo, XlaExecutable]] = WeakKeyDictionary()


def run(program: Program, arguments: Sequence[Any], device: str | DeviceInfo | None = None) -> Any:
    """`Program.run`: the outputs as NumPy arrays, from arrays that lie anywhere; compiled once for each device."""
    info = resolve(device)
    if info.handle is None:
        return HostExecutable(program)(arguments)
    executables = _run_cache.setdefault(program, {})
    if info not in executables:
        executables[info] = XlaExecutable(program, info)
    executable = executables[info]
    return tree.map(np.array, executable(executable.place(tree.leaves(arguments))))


def call(program: Program, arguments: Sequence[Any]) -> Any:
    """`Program.__call__`: part of the program being captured, or `run` on the default device outside of any capture."""
    if current_builder() is None:
        return run(program, arguments)
    leaves = tree.leaves(arguments)
    signature = Signature.of(program)
    signature.check_count(leaves)
    leaves = [x if isinstance(x, Tensor) else signature.checked_leaf(i, x) for i, x in enumerate(leaves)]
    for name, leaf, expected in zip(program.input_names, leaves, program.input_types, strict=False):
        if type_of(leaf) != expected:
            raise ShapeError(f"{program.name}: input {name} must be {expected}, found {type_of(leaf)}")
    results = apply(program, leaves)
    if program.structure is not None:
        return tree.unflatten(program.structure, results)
    return results if len(results) != 1 else results[0]


provide("run", run)
provide("call", call)
