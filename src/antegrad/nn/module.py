"""Module: a model is a frozen dataclass, and a pytree of its arrays."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, dataclass_transform

from antegrad import tree
from antegrad.errors import CheckpointError, NameMissing
from antegrad.ir.types import type_of
from antegrad.ops import dispatch

_STATIC = "antegrad_static"
_STATE = "antegrad_state"


def static(**keywords: Any) -> Any:
    """A dataclass field that is part of the structure (a size, a flag, a function), not an array."""
    return dataclasses.field(metadata={_STATIC: True}, **keywords)


def state(**keywords: Any) -> Any:
    """A dataclass field for an array that training changes and the optimizer does not: a running mean, a counter.

    A layer changes it with `antegrad.nn.context.update`; `training_call` gives the changed model.
    """
    return dataclasses.field(metadata={_STATE: True}, **keywords)


class _Building(threading.local):
    """The modules whose ``__init__`` runs on this thread, by identity."""

    def __init__(self) -> None:
        self.identities: set[int] = set()


_building = _Building()


def _setting(init: Callable[..., None]) -> Callable[..., None]:
    """An ``__init__`` that may set fields, and has to set all of them."""

    @wraps(init)
    def wrapped(self: Module, *arguments: Any, **keywords: Any) -> None:
        if id(self) in _building.identities:  # called by that of a subclass
            return init(self, *arguments, **keywords)
        _building.identities.add(id(self))
        try:
            init(self, *arguments, **keywords)
        finally:
            _building.identities.discard(id(self))
        missing = [field.name for field in _fields(self) if not hasattr(self, field.name)]
        if missing:
            raise NameMissing(f"{type(self).__name__}: __init__ has not set {', '.join(missing)}")

    return wrapped


@dataclass_transform(frozen_default=True, field_specifiers=(static, state, dataclasses.field))
class Module:
    """Base of layers and models.

    A subclass lists its fields as in a dataclass; they are frozen. Fields that hold arrays or other modules (or
    tuples, lists and dicts of them) are children of the pytree; fields made with `static` belong to its structure.
    Calling a module runs its ``__call__``; while it runs, equations carry the module's path as their layer, so a shape
    error names the layer.

        class Block(nn.Module):
            dense: nn.Dense
            scale: float = nn.static(default=1.0)

            def __call__(self, x):
                return x + self.scale * ops.relu(self.dense(x))

    Where the parts have to be made first, write ``__init__`` and set the fields in it:

        class Net(nn.Module):
            first: nn.Dense
            second: nn.Dense

            def __init__(self, width, *, key):
                k1, k2 = random.split(key)
                self.first = nn.Dense(2, width, key=k1)
                self.second = nn.Dense(width, 1, key=k2)

    A subclass of one that writes its own ``__init__`` inherits it; ``class Wide(nn.Dense, init=False)`` tells that to
    a type checker too.
    """

    _written_init = False
    """Whether ``__init__`` is written by hand, here or in a base, and not made of the fields."""

    def __init_subclass__(cls, init: bool = True, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        cls._written_init = cls._written_init or "__init__" in cls.__dict__ or not init
        if "__init__" in cls.__dict__:
            cls.__init__ = _setting(cls.__dict__["__init__"])
        dataclasses.dataclass(frozen=True, eq=False, repr=False, init=not cls._written_init)(cls)
        for method in ("__setattr__", "__delattr__"):  # those of Module allow it in __init__, and say more
            delattr(cls, method)
        tree.register(cls, _flatten, lambda static, children: _unflatten(cls, static, children))
        if "__call__" in cls.__dict__:
            cls.__call__ = in_layer(cls.__dict__["__call__"])

    def __setattr__(self, name: str, value: Any) -> None:
        if id(self) not in _building.identities:
            raise dataclasses.FrozenInstanceError(
                f"{type(self).__name__}.{name} cannot be set: a module does not change after __init__. Make another "
                "one, or use with_parameters for other arrays"
            )
        self._set(**{name: value})

    def __delattr__(self, name: str) -> None:
        what = f"{type(self).__name__}.{name}"
        raise dataclasses.FrozenInstanceError(f"{what} cannot be deleted: a module does not change after __init__")

    def _set(self, **fields: Any) -> None:
        """Fill in the fields, for a subclass that writes its own ``__init__``; a module is frozen after it."""
        known = [field.name for field in _fields(self)]
        for name, value in fields.items():
            if name not in known:
                raise NameMissing(
                    f"{type(self).__name__} has no field {name!r}; it has {', '.join(known) or 'none'}: "
                    f"write it in the class as `{name}: ...` above __init__"
                )
            object.__setattr__(self, name, value)

    def named_parameters(self) -> dict[str, Any]:
        """The arrays by dotted path, state included: ``{"0.w": ..., "0.b": ...}``, in order."""
        return tree.named_leaves(self)

    def with_parameters(self, parameters: Mapping[str, Any]) -> Any:
        """The same model with other arrays, given by path.

        Raises `CheckpointError` with all missing, extra and misfitting names in one message.
        """
        own = self.named_parameters()
        problems = [f"missing {name} ({type_of(own[name])})" for name in own if name not in parameters]
        problems += [f"unknown {name} ({type_of(parameters[name])})" for name in parameters if name not in own]
        problems += [
            f"{name} is {type_of(parameters[name])}, the model has {type_of(own[name])}"
            for name in own
            if name in parameters and type_of(parameters[name]) != type_of(own[name])
        ]
        if problems:
            raise CheckpointError(f"{type(self).__name__}: the parameters do not fit: {'; '.join(problems)}")
        return tree.unflatten(tree.structure(self), [parameters[name] for name in own])

    def parameter_count(self) -> int:
        """Number of elements in all arrays that are trained: state is left out."""
        fixed = state_paths(self)
        return sum(type_of(leaf).size for path, leaf in tree.named_leaves(self).items() if path not in fixed)

    def __repr__(self) -> str:
        shown = [field for field in _fields(self) if not _is_default(self, field)]
        inner = ", ".join(f"{field.name}={_short(getattr(self, field.name))}" for field in shown)
        return f"{type(self).__name__}({inner})"


def _fields(module: Module) -> tuple[dataclasses.Field[Any], ...]:
    # `__init_subclass__` has made every subclass a dataclass, which a type checker cannot see.
    return dataclasses.fields(module)  # pyright: ignore[reportArgumentType]


def _is_default(module: Module, field: dataclasses.Field[Any]) -> bool:
    """Whether a part of the structure is as it is when nobody says anything."""
    return bool(field.metadata.get(_STATIC)) and getattr(module, field.name) == field.default


def _short(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return str(type_of(value))
    return getattr(value, "__name__", None) or repr(value)


def _path_name(module: Module, field: str) -> str:
    """A field's part of the path; a container may leave its own field out (see `Sequential`)."""
    return "" if field == getattr(type(module), "transparent", None) else field


def _flatten(module: Module) -> tuple[list[tuple[str, Any]], Any]:
    children, fixed = [], []
    for field in _fields(module):
        value = getattr(module, field.name)
        if field.metadata.get(_STATIC):
            fixed.append((field.name, value))
        else:
            children.append((field.name, value))
    names = tuple(name for name, _ in children)
    return [(_path_name(module, name), value) for name, value in children], (names, tuple(fixed))


def _unflatten(cls: type, static: Any, children: Any) -> Any:
    names, fixed = static
    module = object.__new__(cls)
    for name, value in (*zip(names, children, strict=True), *fixed):
        object.__setattr__(module, name, value)
    return module


def in_layer(call: Any) -> Any:
    """A method of a module, with the module's path as the current layer; ``__call__`` is decorated without asking."""

    @wraps(call)
    def wrapped(self: Module, *args: Any, **keywords: Any) -> Any:
        with _called(self) as path, dispatch.layer(path):
            result = call(self, *args, **keywords)
            if _calls.observer is not None:
                _calls.observer(path, self, result)
            return result

    return wrapped


def state_paths(model: Any) -> frozenset[str]:
    """The paths of all arrays of `model` that are state and no parameters (see `state`)."""
    paths: set[str] = set()
    for path, module in submodules(model):
        for field in _fields(module):
            if field.metadata.get(_STATE):
                inner = tree.named_leaves(getattr(module, field.name))
                paths.update(".".join(filter(None, (path, _path_name(module, field.name), name))) for name in inner)
    return frozenset(paths)


Observer = Callable[[str, Module, Any], None]
"""What is told of each call that has ended: the path, the module and the result."""


class _Calls(threading.local):
    """The paths of all modules below the outermost one that is being called on this thread, by identity."""

    paths: dict[int, str] | None = None
    observer: Observer | None = None


_calls = _Calls()


@contextmanager
def _called(module: Module) -> Iterator[str]:
    """The path of `module` in the outermost module being called; its class name when it is no part of that."""
    outer = _calls.paths
    if outer is not None:
        yield outer.get(id(module), type(module).__name__)
        return
    _calls.paths = {id(inner): path for path, inner in submodules(module)}
    try:
        yield ""
    finally:
        _calls.paths = None


@contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """Within the block `observer` is told of each call of a module on this thread."""
    outer, _calls.observer = _calls.observer, observer
    try:
        yield
    finally:
        _calls.observer = outer


@contextmanager
def mounted(module: Module, path: str) -> Iterator[None]:
    """Within the block `module`, which its owner made while it was called, has `path`, and all below it go on there."""
    paths = _calls.paths
    if paths is None:
        yield
        return
    own = {id(inner): inner_path for inner_path, inner in submodules(module, path)}
    paths.update(own)
    try:
        yield
    finally:
        for identity in own:
            paths.pop(identity, None)


def submodules(module: Any, path: str = "") -> Iterator[tuple[str, Module]]:
    """`module` and every module below it, with dotted paths."""
    if isinstance(module, Module):
        yield path, module
        for field in _fields(module):
            if not field.metadata.get(_STATIC):
                inner = ".".join(filter(None, (path, _path_name(module, field.name))))
                yield from submodules(getattr(module, field.name), inner)
    elif isinstance(module, (tuple, list)):
        for index, item in enumerate(module):
            yield from submodules(item, f"{path}.{index}" if path else str(index))
    elif isinstance(module, dict):
        for key, item in module.items():
            yield from submodules(item, f"{path}.{key}" if path else str(key))


def find(module: Module, path: str) -> Module:
    """The module at `path`; a `NameMissing` that lists the paths when there is none."""
    known = dict(submodules(module))
    if path in known:
        return known[path]
    raise NameMissing(f"no layer {path!r} in {type(module).__name__}; it has {', '.join(filter(None, known))}")
