"""The eighty known cases: each has a test named after it somewhere in tests/."""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path

import pytest

CASES = [
    "grad-where-guarded", "grad-where-naive", "grad-norm-zero", "grad-sqrt-zero", "grad-abs-zero", "grad-maximum-tie",
    "grad-relu-zero", "grad-max-reduce-tie", "grad-clip-bounds", "grad-pow-zero-exp", "grad-pow-negative-base",
    "grad-prod-zeros", "grad-cumprod-zero", "grad-cumsum", "grad-lse-all-neginf", "grad-lse-large",
    "softmax-masked-row", "ce-huge-logits", "ce-ignore-all", "ce-ignore-some", "ce-label-out-of-range",
    "bce-logits-large", "grad-softplus-large", "grad-sort", "grad-gather-duplicates", "gather-out-of-bounds",
    "grad-scatter-duplicates", "grad-broadcast-size1", "grad-broadcast-scalar", "grad-same-operand-twice",
    "grad-unused-input", "zero-size-sum", "grad-int-input", "grad-bool-mask", "grad-floor-round-sign",
    "conv1d-dilated-strided", "conv1d-groups", "conv-empty-output", "conv-transpose-padding", "maxpool-overlap",
    "maxpool-tie", "bn-batch-one", "layernorm-offset", "bf16-sum", "bf16-weight-update", "adamw-one-step",
    "sgd-momentum", "clip-global-norm", "clip-sharded", "schedule-first-step", "weight-decay-mask",
    "accum-token-weight", "last-batch-weight", "last-batch-dropped-eval", "shuffle-is-permutation", "uniform-loss",
    "resume-mid-epoch", "resume-ema", "dropout-key-per-step", "threefry-values", "grad-nondeterminism",
    "safetensors-fortran", "safetensors-bf16", "safetensors-tied", "safetensors-corrupt", "save-atomic",
    "save-readonly", "save-async-failure", "save-async-donated", "load-other-world-size", "load-mismatch",
    "nan-loss-stops", "nan-blame", "compile-once", "gpu-preallocation", "dataset-too-large", "shape-error",
    "dataset-corrupt", "interrupt", "progress-not-tty",
]  # fmt: skip
"""The ids; the test of ``grad-abs-zero`` is called ``test_case_grad_abs_zero``."""

@lru_cache(maxsize=1)
def implemented() -> frozenset[str]:
    """The names of all test functions in this directory."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in Path(__file__).parent.rglob("test_*.py"))
    return frozenset(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_list_is_complete() -> None:
    assert len(CASES) == len(set(CASES)) == 80


@pytest.mark.parametrize("case", CASES)
def test_every_case_has_a_test(case: str) -> None:
    assert f"test_case_{case.replace('-', '_')}" in implemented()
