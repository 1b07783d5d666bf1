"""The import arrows of the design, and who may know of JAX. All but the last tests read the syntax, and import nothing.

Imports inside functions count; those under `if TYPE_CHECKING:` do not. An import with a computed name could not be
seen, so `import_module` and `__import__` are refused.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.util import resolve_name
from pathlib import Path, PurePath, PurePosixPath

import pytest

SRC = Path(__file__).parents[1] / "src" / "antegrad"

CORE = {"errors", "tree", "ir"}
TRACING = CORE | {"ops", "capture"}
PROGRAMS = TRACING | {"flow", "autodiff", "passes"}
DEVICES = PROGRAMS | {"render", "runtime", "random"}
MODELS = DEVICES | {"nn", "optim", "losses", "data"}

ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "tree": {"errors"},
    "ir": {"errors", "tree"},
    "ops": CORE,
    "capture": CORE | {"ops"},
    "flow": TRACING,
    "autodiff": TRACING | {"flow", "passes", "vmap"},
    "passes": TRACING | {"autodiff"},
    "render": PROGRAMS,
    "runtime": PROGRAMS | {"render"},
    "vmap": TRACING | {"flow"},
    "tools": PROGRAMS | {"render", "runtime"},
    "random": PROGRAMS | {"render", "runtime", "vmap"},
    "nn": MODELS,
    "optim": MODELS,
    "losses": MODELS,
    "data": MODELS,
    "checkpoint": MODELS,
    "train": MODELS | {"checkpoint", "parallel"},
    "parallel": MODELS | {"checkpoint", "train"},
}
"""What each package or module of antegrad may import, besides itself."""

UNBOUND = {"__init__", "__main__", "cli"}
"""The public surface and the command line may import everything."""

JAX_ALLOWED = {"runtime": "jax", "parallel": "jax", "tree": "jax.tree_util"}
"""Who may use which part of JAX. (jaxlib counts as JAX.)"""

JAX_BANNED = {
    *("jax.numpy", "jax.grad", "jax.value_and_grad", "jax.vjp", "jax.jvp", "jax.linearize", "jax.linear_transpose"),
    *("jax.jacobian", "jax.jacfwd", "jax.jacrev", "jax.hessian", "jax.make_jaxpr"),
}
"""What nobody may use, because antegrad does it itself."""


def runtime_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """`node` and everything below it, except what only a type checker reads."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for statement in child.orelse:
                yield from runtime_nodes(statement)
        else:
            yield from runtime_nodes(child)


def imports(path: PurePosixPath, source: str) -> Iterator[tuple[int, str, str, str]]:
    """For each name that a file imports: the line, the full name, the local name, and what that stands for."""
    package = ".".join(("antegrad", *path.parent.parts))
    for node in runtime_nodes(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                yield node.lineno, alias.name, alias.asname or root, alias.name if alias.asname else root
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            for alias in node.names:
                name = f"{base}.{alias.name}"
                yield node.lineno, name, alias.asname or alias.name, name


def full_names(path: PurePosixPath, source: str) -> set[tuple[int, str]]:
    """Line and full name of everything that a file imports or reaches through what it imports (`jax.numpy.sum`)."""
    found = list(imports(path, source))
    stands_for = {local: meaning for _, _, local, meaning in found}
    names = {(line, name) for line, name, _, _ in found}
    for node in runtime_nodes(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            root, _, rest = ast.unparse(node).partition(".")
            if root in stands_for:
                names.add((node.lineno, f"{stands_for[root]}.{rest}"))
    return names


def identifiers(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every name that a file uses or defines; comments and strings are not among them."""
    for node in ast.walk(ast.parse(source)):
        for field in ("id", "attr", "arg", "name", "asname", "module"):
            if isinstance(text := getattr(node, field, None), str):
                yield getattr(node, "lineno", 0), text


def layer_of(path: PurePath) -> str:
    return path.parts[0].removesuffix(".py")


def within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def arrows(path: PurePosixPath, source: str) -> list[str]:
    """Imports of antegrad that point the wrong way."""
    layer = layer_of(path)
    if layer in UNBOUND:
        return []
    if layer not in ALLOWED:
        return [f"{path}: antegrad.{layer} has no row in ALLOWED"]
    return [
        f"{path}:{line} imports {name}; {layer} may import {', '.join(sorted(ALLOWED[layer])) or 'nothing'}"
        for line, name, _, _ in imports(path, source)
        if within(name, "antegrad") and not any(within(name, f"antegrad.{other}") for other in {layer} | ALLOWED[layer])
    ]


def jax_homes(path: PurePosixPath, source: str) -> list[str]:
    """Uses of JAX outside its few homes."""
    home = JAX_ALLOWED.get(layer_of(path))
    return [
        f"{path}:{line} uses {name}; {layer_of(path)} may use {home or 'no part of JAX'}"
        for line, name in sorted(full_names(path, source))
        if name.split(".")[0] in ("jax", "jaxlib") and not (home and within(name.replace("jaxlib", "jax", 1), home))
    ]


def bans(path: PurePosixPath, source: str) -> list[str]:
    """JAX's own derivatives, array functions and IR, which nobody may use, and imports that cannot be seen."""
    used = {(line, name) for line, name in full_names(path, source) if any(within(name, ban) for ban in JAX_BANNED)}
    used |= {(line, text) for line, text in identifiers(source) if "jaxpr" in text.lower()}
    if layer_of(path) not in UNBOUND:
        used |= {(line, text) for line, text in identifiers(source) if text in ("import_module", "__import__")}
    return [f"{path}:{line} uses {name}" for line, name in sorted(used)]


def strangers(names: Iterable[str]) -> list[str]:
    """Those of `names` that are no package or module of antegrad."""
    there = {layer_of(path.relative_to(SRC)) for path in [*SRC.glob("*.py"), *SRC.glob("*/__init__.py")]}
    return sorted({*names} - there)


Rule = Callable[[PurePosixPath, str], list[str]]


@pytest.mark.parametrize("rule", [arrows, jax_homes, bans])
def test_source_keeps(rule: Rule) -> None:
    files = sorted(SRC.rglob("*.py"))
    assert files
    problems = [
        problem
        for file in files
        for problem in rule(PurePosixPath(file.relative_to(SRC).as_posix()), file.read_text(encoding="utf-8"))
    ]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    ("rule", "path", "source"),
    [
        (arrows, "ops/linalg.py", "from antegrad.nn import Dense"),
        (arrows, "ops/linalg.py", "from antegrad import nn"),
        (arrows, "ops/linalg.py", "from ..nn import Dense"),
        (arrows, "ops/__init__.py", "from ..nn import Dense"),
        (arrows, "ir/program.py", "def python(self):\n    from antegrad.render import python"),
        (arrows, "ir/program.py", "import antegrad as ag"),
        (arrows, "errors.py", "import antegrad.ir.types"),
        (arrows, "nn/layers.py", "if TYPE_CHECKING:\n    pass\nelse:\n    import antegrad.train"),
        (arrows, "utilities.py", ""),
        (jax_homes, "ops/linalg.py", "import jax"),
        (jax_homes, "ops/linalg.py", "def f():\n    from jax import Array"),
        (jax_homes, "ops/linalg.py", "from jaxlib import xla_client"),
        (jax_homes, "tree.py", "import jax"),
        (jax_homes, "tree.py", "from jax import tree_util, jit"),
        (jax_homes, "tree.py", "import jax.tree_util\njax.jit(len)"),
        (jax_homes, "__init__.py", "import jax"),
        (bans, "runtime/xla.py", "import jax\njax.grad(len)"),
        (bans, "runtime/xla.py", "import jax as j\nj.numpy.sum(1)"),
        (bans, "runtime/xla.py", "import jax.numpy as jnp"),
        (bans, "runtime/xla.py", "from jax import vjp as pullback"),
        (bans, "runtime/xla.py", "from jax.extend.core import ClosedJaxpr"),
        (bans, "runtime/xla.py", "def lower(jaxpr): ..."),
        (bans, "ops/linalg.py", "import importlib\nimportlib.import_module('jax')"),
        (bans, "__init__.py", "from jax import numpy"),
    ],
)
def test_a_breach_is_found(rule: Rule, path: str, source: str) -> None:
    assert rule(PurePosixPath(path), source)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("ops/linalg.py", "import numpy as np\nfrom antegrad.ir import types\nfrom . import shape\nnp.grad = types"),
        ("ir/program.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from antegrad.nn import Module\n"),
        ("tree.py", "from jax import tree_util\nleaves = tree_util.tree_leaves"),
        ("runtime/xla.py", "'''No jaxpr, and no jax.grad.'''\nimport jax\njax.jit(len)  # not jax.numpy"),
        ("autodiff/higher.py", "from antegrad.autodiff.reverse import vjp, grad"),
        ("__init__.py", "from antegrad import train"),
    ],
)
def test_right_use_passes(path: str, source: str) -> None:
    assert [*arrows(PurePosixPath(path), source), *jax_homes(PurePosixPath(path), source)] == []
    assert bans(PurePosixPath(path), source) == []


def test_the_tables_name_what_there_is() -> None:
    assert strangers([*ALLOWED, *set().union(*ALLOWED.values()), *UNBOUND, *JAX_ALLOWED]) == []
    assert strangers(["ops", "errors", "layers", "export"]) == ["export", "layers"]


def starts_xla(code: str) -> bool:
    """Whether a fresh Python that runs `code` ends with an XLA client, and so with device memory taken."""
    ask = "from jax._src import xla_bridge; print(xla_bridge.backends_are_initialized())"
    command = [sys.executable, "-W", "error", "-c", f"{code}\n{ask}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1] == "True"


def test_import_starts_no_xla_client() -> None:
    assert not starts_xla("import antegrad")


def test_a_started_xla_client_is_seen() -> None:
    assert starts_xla("import jax; jax.devices('cpu')")
