"""Odd input: it works, or it is refused by name, and nothing is lost or changed silently."""

from __future__ import annotations

import numpy as np
import pytest

import antegrad as ag
from antegrad import losses, nn, ops, optim, random

X3 = np.ones((2, 3), np.float32)
X, Y = np.ones((8, 4), np.float32), np.ones((8, 2), np.float32)
W = np.ones((4, 2), np.float32)


class Pair(nn.Module):
    ws: list

    def __call__(self, v):
        return v @ self.ws[0] + v @ self.ws[1]


class Odd(nn.Module):
    x: np.ndarray

    def __call__(self, v):
        return v @ self.x


@pytest.mark.parametrize("model", [Pair([W, 2 * W]), Odd(W)], ids=["numbered leaves", "a field called x"])
def test_parameters_are_found_whatever_they_are_called(model):
    step = ag.train_step(model, losses.mean_squared_error, optim.sgd(0.1), X, Y)
    loss, *after = step.step.run(*step.init().arrays, X, Y, device="host")
    again, *_ = step.step.run(*after, X, Y, device="host")
    assert again < loss
    assert len(set(step.step.input_names)) == len(step.step.input_names)


def test_a_chain_of_optimizers_is_saved_and_restored(tmp_path):
    optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.adam(0.1))
    step = ag.train_step(nn.Dense(4, 2, key=random.key(0)), losses.mean_squared_error, optimizer, X, Y)
    _, *arrays = step.step.run(*step.init().arrays, X, Y, device="host")
    step.save(tmp_path / "chain.safetensors", step.init().with_arrays(arrays))
    restored = step.load(tmp_path / "chain.safetensors")
    assert [a.tobytes() for a in restored.arrays] == [a.tobytes() for a in arrays]
    assert ag.checkpoint.training_info(ag.checkpoint.load(tmp_path / "chain.safetensors")).step == 1


NAMES = [
    *("a" * 120, '"""', '"""\n    import nothing_at_all\n    """', "\0", "a, b", "x)", "a\nb"),
    *("é", "lambda", "np", "\\", "'"),
]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_any_key_is_a_name_that_prints_and_comes_back(name):
    program = ag.capture(lambda d: {name: d[name].sum()}, {name: X3})
    assert program.run({name: X3}, device="host")[name] == 6
    back = ag.from_python(program.python())
    assert (back.input_names, back.output_names) == (program.input_names, program.output_names)


@pytest.mark.parametrize("other", [X3.astype(np.float64), np.ones(7, np.float32)], ids=["type", "shape"])
def test_a_program_called_in_a_capture_keeps_its_types(other):
    program = ag.capture(lambda a: ops.sin(a), X3)
    assert ag.capture(lambda a: program(a), X3).output_types == program.output_types
    with pytest.raises(ag.ShapeError, match=r"input a must be f32\[2,3\]"):
        ag.capture(lambda a: program(a), other)


def test_paths_that_collide_are_refused():
    tree = {"a.b": W, "a": {"b": W}}
    with pytest.raises(ag.ProgramError, match=r"'a\.b'"):
        optim.sgd(0.1).init(tree) and optim.apply_updates(tree, tree)


def test_large_indices_are_clamped_under_vmap_too():
    large, y = np.array([2**32, 2**31], np.int64), np.arange(5, dtype=np.float32)
    np.testing.assert_array_equal(ag.vmap(lambda v, i: ops.take(v, i))(y[None], large[None]), [[4, 4]])
    added = ag.vmap(lambda v, i: v.at[i].add(1.0))(y[None], large[None])
    np.testing.assert_array_equal(added, [[0, 1, 2, 3, 6]])


@pytest.mark.parametrize("device", ["host", "cpu"])
def test_the_largest_unsigned_index_is_clamped(device):
    y, index = np.arange(300, dtype=np.float32), np.array([2**64 - 1], np.uint64)
    assert ag.capture(lambda v, i: ops.take(v, i), y, index).run(y, index, device=device) == [299]


def test_wide_starts_do_not_wrap():
    found = ops.dynamic_slice(np.arange(5, dtype=np.float32), [np.int64(2**32 + 1)], (2,))
    np.testing.assert_array_equal(found, [3, 4])
    with pytest.raises(ag.DTypeError, match="bounds are i32"):
        ag.fori_loop(np.int64(0), np.int64(2**32 + 3), lambda i, c: c + 1.0, 1.0)


def test_f64_scalars_stay_f64():
    assert ops.add(np.float64(0.1), np.float64(0.2)).dtype == np.float64
    assert ops.add(X3, np.float64(0.2)).dtype == np.float32


ALONG_AXES = [
    *("sum", "prod", "max", "min", "all", "any", "mean", "var", "std", "median", "logsumexp", "softmax", "norm", "ptp"),
    *("flip", "squeeze", "argmax", "argmin", "sort", "argsort", "cumsum", "cumprod", "cummax", "cumlogsumexp", "diff"),
    *("count_nonzero", "nansum", "nanmax", "average", "expand_dims"),
]


@pytest.mark.parametrize("axis", [1.5, "0", 7, -7, True, (0, 0), np.array([0.5]), [None]], ids=repr)
@pytest.mark.parametrize("name", ALONG_AXES)
def test_what_is_no_axis_is_refused(name, axis):
    with pytest.raises(ag.ShapeError, match="axis"):
        getattr(ops, name)(X3, axis=axis)


NO_ARRAYS = {
    "text": np.array(["a"]),
    "objects": np.array([None]),
    "complex": np.array([1j]),
    "dates": np.array(["2020-01-01"], "M8[D]"),
    "none": None,
    "ragged": [[1], [1, 2]],
    "masked": np.ma.masked_array(X3, X3 > 0.5),
}


@pytest.mark.parametrize("operand", NO_ARRAYS.values(), ids=NO_ARRAYS)
@pytest.mark.parametrize("name", [*ALONG_AXES[:-1], "ravel", "transpose", "rot90", "tril", "diag", "trace", "fliplr"])
def test_what_is_no_array_is_refused(name, operand):
    with pytest.raises(ag.DTypeError):
        getattr(ops, name)(operand)


NO_SIZES = [1.5, -1, "a", None, True, float("nan"), np.float32(2), 2**70, [1, [2]]]
SIZED = {
    "zeros": ops.zeros,
    "full": lambda n: ops.full(n, 1),
    "eye": ops.eye,
    "tri": ops.tri,
    "one_hot": lambda n: ops.one_hot(np.array([0]), n),
    "linspace": lambda n: ops.linspace(0, 1, n),
    "broadcast_to": lambda n: ops.broadcast_to(np.float32(1), n),
    "tile": lambda n: ops.tile(X3, n),
    "repeat": lambda n: ops.repeat(X3, n, 0),
    "top_k": lambda n: ops.top_k(X3, n),
    "segment_sum": lambda n: ops.segment_sum(X3, np.array([0, 1]), n),
    "dynamic_slice": lambda n: ops.dynamic_slice(X3, (0, 0), n),
}


@pytest.mark.parametrize("size", NO_SIZES, ids=repr)
@pytest.mark.parametrize("name", SIZED)
def test_what_is_no_size_is_refused(name, size):
    with pytest.raises(ag.ShapeError, match=name):
        SIZED[name](size)


@pytest.mark.parametrize("number", ["a", None, [1], 1.5, float("nan"), 2**70], ids=repr)
@pytest.mark.parametrize("use", [ops.tril, ops.diagonal, ops.trace, ops.diag, ops.rot90], ids=lambda f: f.__name__)
def test_what_is_no_integer_is_refused(use, number):
    with pytest.raises(ag.ShapeError, match="integers"):
        use(X3, number)


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (lambda: ops.sum(np.ma.masked_array(X3, X3 > 0.5)), ag.DTypeError, "masked"),
        (lambda: ag.capture(lambda a: a * 10**400, X3), ag.DTypeError, "too large for f32"),
        (lambda: ops.add(np.array([None]), 1), ag.DTypeError, "no element type"),
        (lambda: ops.IndexUpdate(X3).set(1.0), ag.ShapeError, "an index is needed"),
        (lambda: train(lambda v: v[:, :2]), ag.TraceError, "no parameters"),
        (lambda: train({"w": W}), ag.TraceError, "callable model"),
        (lambda: ag.train_step(Odd(W), None, optim.sgd(0.1), X, Y), ag.TraceError, "callable loss"),
    ],
)
def test_refusals(use, error, message):
    with pytest.raises(error, match=message):
        use()


def train(model):
    return ag.train_step(model, losses.mean_squared_error, optim.sgd(0.1), X, Y)
