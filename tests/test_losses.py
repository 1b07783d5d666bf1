"""Losses: values and gradients against JAX and torch, the cases, the extremes, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import antegrad as ag
from antegrad import losses, ops
from antegrad.errors import DTypeError, SettingError, ShapeError
from tests.ops.certification import Case, cases, check_derivatives, check_forward
from tests.support import COMPOSED, devices, run

F32 = np.float32


def loss_and_gradients(loss: Callable[..., Any], *arrays: Any, device: str = "host") -> list[np.ndarray]:
    """The loss (summed where it is not a scalar), and its gradient by every float array."""
    program = ag.reverse(ag.capture(lambda *xs: ops.sum(loss(*xs)), *arrays))
    return run(program, arrays, device)


def by_class(function: Callable[..., Any]) -> Callable[..., Any]:
    """A JAX reference ``function(logits, one-hot targets)`` for integer labels."""
    return lambda logits, labels: function(logits, jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype))


def jax_mean(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *xs: jnp.mean(function(*xs))


def soft(logits: Any, targets: Any) -> Any:
    return -jnp.sum(targets * jax.nn.log_softmax(logits), -1)


def smooth_soft(logits: Any, targets: Any) -> Any:
    return soft(logits, 0.8 * targets + 0.2 / targets.shape[-1])


def kl(log_predictions: Any, targets: Any) -> Any:
    return jnp.sum(targets * (jnp.log(targets) - log_predictions), -1)


def huber(prediction: Any, target: Any) -> Any:
    distance = jnp.abs(prediction - target)
    return jnp.where(distance <= 1, distance**2 / 2, distance - 0.5)


def nll(mean: Any, target: Any, variance: Any) -> Any:
    return (jnp.log(variance) + (target - mean) ** 2 / variance) / 2


def certified(loss: str, reference: Callable[..., Any], *operands: str, **params: Any) -> list[Case]:
    """The mean in f64, f32 and bf16 (as f32), and the loss of each sample in f32."""
    function = getattr(losses, loss)
    lines = [(dtype, jax_mean(reference), "mean") for dtype in ("f64", "f32", "bf16")] + [("f32", reference, "none")]
    return [
        case
        for dtype, truth, reduction in lines
        for case in cases(
            f"{loss}:{reduction}",
            *(operand.replace("F[", f"{dtype}[") for operand in operands),
            of=lambda *xs, reduction=reduction: function(*xs, reduction=reduction, **params),
            jax=truth,
            bound=COMPOSED,
            out="f32" if dtype == "bf16" else dtype,
        )
    ]


CASES = [
    *certified("mean_squared_error", lambda p, t: (p - t) ** 2, "F[4,3]", "F[4,3]"),
    *certified("hinge", lambda s, t: jnp.maximum(0, 1 - s * t), "F[4,3]", "F[4,3]"),
    *certified("l1", lambda p, t: jnp.abs(p - t), "F[4,3]", "F[4,3]"),
    *certified("huber", huber, "F[4,3]", "F[4,3]"),
    *certified("gaussian_nll", nll, "F[4,3]", "F[4,3]", "F[4,3]:0.5:2"),
    *certified("kl_divergence", kl, "F[4,3]:-3:-0.5", "F[4,3]:0.2:0.9"),
    *certified(
        "binary_cross_entropy_with_logits",
        lambda x, t: jnp.maximum(x, 0) - x * t + jnp.log1p(jnp.exp(-jnp.abs(x))),
        "F[4,3]",
        "F[4,3]:0:1",
    ),
    *certified("cross_entropy", soft, "F[4,3]", "F[4,3]:0:1"),
    *certified("cross_entropy", smooth_soft, "F[4,3]", "F[4,3]:0:1", label_smoothing=0.2),
    *certified("cross_entropy", by_class(soft), "F[5,3]", "i32[5]:0:2"),
    *certified("cross_entropy", by_class(smooth_soft), "F[5,3]", "u8[5]:0:2", label_smoothing=0.2),
    *certified("cross_entropy", by_class(soft), "F[2,5,3]", "i64[2,5]:0:2"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values(case: Case) -> None:
    check_forward(case)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients(case: Case) -> None:
    check_derivatives(case)


# Cross-entropy


@pytest.mark.parametrize("device", devices())
def test_case_ce_huge_logits(device: str) -> None:
    logits, labels = np.array([[1000, 0, -1000]], F32), np.array([2])
    loss, gradient = loss_and_gradients(losses.cross_entropy, logits, labels, device=device)
    assert loss == 2000
    assert gradient.tolist() == [[1, 0, -1]]


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("weights", [None, [1, 2, 3]])
def test_case_ce_ignore_all(device: str, weights: list[float] | None) -> None:
    def loss(logits: Any, labels: Any) -> Any:
        weight = None if weights is None else np.array(weights, F32)
        return losses.cross_entropy(logits, labels, ignore_index=-100, weights=weight)

    for logits in ([[1, 2, 3]], [[np.inf, np.nan, -np.inf]]):
        value, gradient = loss_and_gradients(loss, np.array(logits, F32), np.array([-100]), device=device)
        assert value == 0
        assert gradient.tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("ignored", [-1, -100, 2**31 - 1])
def test_case_ce_ignore_some(device: str, ignored: int) -> None:
    logits, labels = np.array([[2, 0], [0, 0], [5, 1]], F32), np.array([0, 1, ignored], np.int32)
    value, gradient = loss_and_gradients(
        lambda x, y: losses.cross_entropy(x, y, ignore_index=ignored), logits, labels, device=device
    )
    np.testing.assert_allclose(value, 0.4100376, rtol=2e-7)
    slope = 0.5 / (1 + np.exp(2))  # 0.0596015
    np.testing.assert_allclose(gradient, [[-slope, slope], [0.25, -0.25], [0, 0]], rtol=5e-7)
    none = losses.cross_entropy(logits, labels, ignore_index=ignored, reduction="none")
    np.testing.assert_allclose(none, [0.126928, np.log(2), 0], rtol=1e-6)
    total = losses.cross_entropy(logits, labels, ignore_index=ignored, reduction="sum")
    np.testing.assert_allclose(total, 2 * 0.4100376, rtol=2e-7)


def test_an_ignored_class_may_be_a_class() -> None:
    logits, labels = np.array([[2, 0], [0, 0]], F32), np.array([0, 1])
    np.testing.assert_allclose(losses.cross_entropy(logits, labels, ignore_index=0), np.log(2), rtol=1e-7)


def test_case_ce_label_out_of_range() -> None:
    logits = np.array([[0.2, 0.1, 0.4, 0.6]], F32)
    with pytest.raises(losses.LabelError, match=r"labels\[0\] is 4, expected a class from 0 to 3; 1 of 1 labels"):
        losses.cross_entropy(logits, np.array([4]))
    with pytest.raises(losses.LabelError, match=r"labels\[0\] is -1"):
        losses.cross_entropy(logits, np.array([-1]))
    with pytest.raises(losses.LabelError, match=r"labels\[0\] is -1, .* or -100, which is ignored"):
        losses.cross_entropy(logits, [-1], ignore_index=-100)
    with pytest.raises(losses.LabelError, match=r"labels\[0\] is 4"):
        ag.capture(lambda x: losses.cross_entropy(x, np.array([4])), logits)


@pytest.mark.parametrize("device", devices())
def test_a_traced_label_out_of_range_gives_nan(device: str) -> None:
    logits = np.zeros((3, 4), F32)
    program = ag.capture(lambda x, y: losses.cross_entropy(x, y, reduction="none"), logits, ag.spec((3,), "i32"))
    (loss,) = run(program, [logits, np.array([4, -1, 3], np.int32)], device)
    np.testing.assert_array_equal(np.isnan(loss), [True, True, False])


def test_check_labels() -> None:
    losses.check_labels(np.array([[0, 1], [2, 3]]), 4)
    losses.check_labels(np.array([0, -100, 255]), 256, ignore_index=-100)
    losses.check_labels(np.array([0, 9], np.uint8), 10)
    losses.check_labels(np.zeros((0,), np.int64), 10)
    with pytest.raises(losses.LabelError, match=r"labels\[1, 0\] is 7, expected a class from 0 to 3; 2 of 4 labels"):
        losses.check_labels(np.array([[0, 1], [7, -1]]), 4)
    with pytest.raises(losses.LabelError, match=r"labels is 300"):
        losses.check_labels(300, 256)
    with pytest.raises(DTypeError, match=r"labels are integers, found f64\[1\]"):
        losses.check_labels(np.array([0.0]), 4)


@pytest.mark.parametrize("device", devices())
def test_case_uniform_loss(device: str) -> None:
    logits, labels = np.full((4, 8, 65), 3.0, F32), np.arange(32).reshape(4, 8)
    loss, gradient = loss_and_gradients(losses.cross_entropy, logits, labels, device=device)
    assert abs(loss - np.log(65)) < 5e-7
    assert np.abs(gradient.sum(-1)).max() < 1e-8


def test_small_labels_of_many_classes() -> None:
    """u8 labels with 300 classes: positions must not wrap at 256."""
    logits = np.zeros((1, 300), F32)
    logits[0, 259] = 50
    loss = losses.cross_entropy(logits, np.array([3], np.uint8))
    np.testing.assert_allclose(loss, 50, rtol=1e-6)


def test_a_confident_loss_keeps_its_digits() -> None:
    """Far from 0 the logits are coarse (logsumexp is off by 1e-3), but their differences are not."""
    logits, labels = np.array([[10000, 9995]], F32), np.array([0])
    np.testing.assert_allclose(losses.cross_entropy(logits, labels), np.log1p(np.exp(-5.0)), atol=1.2e-7)


@pytest.mark.parametrize("device", devices())
def test_excluded_classes(device: str) -> None:
    logits, labels = np.array([[0, -np.inf, 0]], F32), np.array([0])
    loss, gradient = loss_and_gradients(losses.cross_entropy, logits, labels, device=device)
    np.testing.assert_allclose(loss, np.log(2), rtol=1e-7)
    np.testing.assert_allclose(gradient, [[-0.5, 0, 0.5]], rtol=1e-7)
    targets = np.array([[1, 0, 0]], F32)
    loss, gradient, _ = loss_and_gradients(losses.cross_entropy, logits, targets, device=device)
    np.testing.assert_allclose(loss, np.log(2), rtol=1e-7)
    np.testing.assert_allclose(gradient, [[-0.5, 0, 0.5]], rtol=1e-7)


def test_axis_of_the_classes() -> None:
    logits, labels = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(F32), np.array([[0, 1, 4], [2, 2, 3]])
    moved = losses.cross_entropy(np.moveaxis(logits, 1, -1), labels, reduction="none")
    np.testing.assert_array_equal(losses.cross_entropy(logits, labels, axis=1, reduction="none"), moved)
    soft_labels = np.moveaxis(np.eye(5, dtype=F32)[labels], -1, 1)
    soft_loss = losses.cross_entropy(logits, soft_labels, axis=1, reduction="none")
    np.testing.assert_allclose(soft_loss, moved, rtol=1e-6)


TORCH_OPTIONS = [
    {},
    {"ignore_index": 1},
    {"label_smoothing": 0.3},
    {"weights": [0.5, 2, 1, 0.25]},
    {"weights": [0.5, 2, 1, 0.25], "label_smoothing": 0.3},
    {"weights": [0.5, 2, 1, 0.25], "label_smoothing": 0.3, "ignore_index": 1},
]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [(k, o) for k in ("labels", "probabilities") for o in TORCH_OPTIONS if k == "labels" or "ignore_index" not in o],
    ids=str,
)
def test_cross_entropy_is_that_of_torch(kind: str, options: dict[str, Any], reduction: str) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    logits = (3 * rng.normal(size=(6, 4))).astype(F32)
    targets: Any = rng.integers(0, 4, 6) if kind == "labels" else rng.dirichlet(np.ones(4), 6).astype(F32)
    own = {k: np.array(v, F32) if k == "weights" else v for k, v in options.items()}
    loss, gradient = loss_and_gradients(lambda x: losses.cross_entropy(x, targets, reduction=reduction, **own), logits)
    x = torch.tensor(logits.astype(np.float64), requires_grad=True)
    y = torch.tensor(targets if kind == "labels" else targets.astype(np.float64))
    theirs = {k.removesuffix("s"): torch.tensor(v).double() if k == "weights" else v for k, v in options.items()}
    expected = torch.nn.functional.cross_entropy(x, y, reduction=reduction, **theirs).sum()
    expected.backward()
    np.testing.assert_allclose(loss, expected.item(), rtol=5e-7)
    np.testing.assert_allclose(gradient, x.grad.numpy(), atol=2e-7 * np.abs(x.grad.numpy()).max())


# The others


@pytest.mark.parametrize("device", devices())
def test_case_bce_logits_large(device: str) -> None:
    def loss(x: Any, t: Any) -> Any:
        return losses.binary_cross_entropy_with_logits(x, t, reduction="none")

    logits, targets = np.array([100, -100, 0], F32), np.array([0, 1, 1], F32)
    np.testing.assert_array_equal(loss(logits, targets), np.array([100, 100, np.log(2)], F32))
    assert loss_and_gradients(loss, logits, targets, device=device)[1].tolist() == [1, -1, -0.5]


@pytest.mark.parametrize("device", devices())
def test_a_confident_bce_keeps_its_digits(device: str) -> None:
    logits, targets = np.array([-20, -10, 10, 20], F32), np.array([0, 0, 1, 1], F32)
    wide = logits.astype(np.float64)
    loss, gradient, _ = loss_and_gradients(losses.binary_cross_entropy_with_logits, logits, targets, device=device)
    np.testing.assert_allclose(loss, np.log1p(np.exp(-np.abs(wide))).mean(), rtol=3e-7)
    np.testing.assert_allclose(gradient, -np.sign(wide) / (1 + np.exp(np.abs(wide))) / 4, rtol=3e-7)


def test_bce_is_that_of_optax() -> None:
    rng = np.random.default_rng(2)
    logits, targets = (4 * rng.normal(size=(50,))).astype(F32), rng.uniform(size=50).astype(F32)
    expected = optax.losses.sigmoid_binary_cross_entropy(logits, targets)
    np.testing.assert_allclose(
        losses.binary_cross_entropy_with_logits(logits, targets, reduction="none"), expected, rtol=2e-6
    )


@pytest.mark.parametrize("delta", [0.5, 1.0, 3.0])
def test_huber_is_that_of_optax(delta: float) -> None:
    x, y = np.array([-4, -1, -0.25, 0, 0.5, 1, 3, 1e30], F32), np.zeros(8, F32)
    expected = optax.losses.huber_loss(x, y, delta=delta)
    np.testing.assert_allclose(losses.huber(x, y, delta=delta, reduction="none"), expected, rtol=2e-7)
    gradient = loss_and_gradients(lambda x, y: losses.huber(x, y, delta=delta, reduction="sum"), x, y)[1]
    np.testing.assert_array_equal(gradient, np.clip(x, -delta, delta))


def test_gaussian_nll_is_that_of_torch() -> None:
    torch = pytest.importorskip("torch")
    mean, target, variance = np.random.default_rng(3).uniform(0.5, 2, (3, 20)).astype(F32)
    arrays = [torch.tensor(a.astype(np.float64), requires_grad=True) for a in (mean, target, variance)]
    expected = torch.nn.functional.gaussian_nll_loss(arrays[0], arrays[1], arrays[2])
    expected.backward()
    loss, *gradients = loss_and_gradients(losses.gaussian_nll, mean, target, variance)
    np.testing.assert_allclose(loss, expected.item(), rtol=5e-7)
    for gradient, array in zip(gradients, arrays, strict=True):
        np.testing.assert_allclose(gradient, array.grad.numpy(), rtol=2e-5, atol=1e-8)


@pytest.mark.parametrize("variance", [-1e6, 0, 1e-30])
def test_gaussian_nll_of_a_variance_that_is_none(variance: float) -> None:
    arrays = [np.array([value], F32) for value in (1, 2, variance)]
    loss, d_mean, _, d_variance = loss_and_gradients(losses.gaussian_nll, *arrays)
    np.testing.assert_allclose(loss, (np.log(1e-6) + 1e6) / 2, rtol=1e-6)
    assert np.isfinite(d_mean).all()
    assert d_variance.tolist() == [0]


@pytest.mark.parametrize("device", devices())
def test_kl_divergence_of_impossible_classes(device: str) -> None:
    targets, log_predictions = np.array([[0, 0.25, 0.75]], F32), np.array([[-np.inf, np.log(0.5), np.log(0.5)]], F32)
    loss, gradient, d_targets = loss_and_gradients(losses.kl_divergence, log_predictions, targets, device=device)
    np.testing.assert_allclose(loss, 0.25 * np.log(0.5) + 0.75 * np.log(1.5), rtol=1e-6)
    np.testing.assert_array_equal(gradient, -targets)
    assert np.isfinite(d_targets[0, 1:]).all()


def test_kl_divergence_is_that_of_optax_and_zero_for_equals() -> None:
    rng = np.random.default_rng(4)
    targets = rng.dirichlet(np.ones(5), 7).astype(F32)
    logs = np.log(rng.dirichlet(np.ones(5), 7)).astype(F32)
    found = losses.kl_divergence(logs, targets, reduction="none")
    np.testing.assert_allclose(found, optax.losses.kl_divergence(logs, targets), rtol=1e-5)
    np.testing.assert_allclose(losses.kl_divergence(np.log(targets), targets), 0, atol=1e-7)
    across = losses.kl_divergence(logs.T.copy(), targets.T.copy(), axis=0, reduction="none")
    np.testing.assert_allclose(across, found, rtol=1e-6)


def test_l1_has_no_gradient_where_equal() -> None:
    x, y = np.array([1, 2, 3], F32), np.array([2, 2, 2], F32)
    assert loss_and_gradients(lambda x, y: losses.l1(x, y, reduction="sum"), x, y)[1].tolist() == [-1, 0, 1]


def test_hinge_is_that_of_optax_but_flat_at_the_kink() -> None:
    scores, targets = np.array([-2, -1, 0.5, 1, 3], F32), np.array([1, -1, 1, 1, -1], F32)
    np.testing.assert_array_equal(
        losses.hinge(scores, targets, reduction="none"), optax.losses.hinge_loss(scores, targets)
    )
    gradient = loss_and_gradients(lambda s: losses.hinge(s, targets, reduction="sum"), scores)[1]
    np.testing.assert_array_equal(gradient, [-1, 0, -1, 0, 1])


def test_settings_of_losses_are_refused() -> None:
    ones = np.ones(3, F32)
    for delta in (0.0, -1.0, float("nan"), float("inf"), "1"):
        with pytest.raises(SettingError, match=rf"huber: delta must be a number in \(0, inf\), found {delta!r}"):
            losses.huber(ones, ones, delta=delta)
    with pytest.raises(SettingError, match="gaussian_nll: eps must be"):
        losses.gaussian_nll(ones, ones, ones, eps=0.0)


# Common to all


PAIRS = ["mean_squared_error", "l1", "huber", "binary_cross_entropy_with_logits", "hinge", "kl_divergence"]


@pytest.mark.parametrize("name", PAIRS)
def test_nothing_is_broadcast(name: str) -> None:
    message = rf"{name}: \w+ f32\[8,1\] and \w+ f32\[8\] must have one shape(.|\n)*test_losses\.py:\d+"
    with pytest.raises(ShapeError, match=message):
        getattr(losses, name)(np.zeros((8, 1), F32), np.zeros(8, F32))
    with pytest.raises(ShapeError, match=message):
        ag.capture(lambda p, t: getattr(losses, name)(p, t), ag.spec((8, 1)), ag.spec((8,)))


def test_gaussian_nll_broadcasts_nothing() -> None:
    with pytest.raises(ShapeError, match=r"mean f32\[8\] and target f32\[8\] and variance f32\[1\]"):
        losses.gaussian_nll(np.zeros(8, F32), np.zeros(8, F32), np.ones(1, F32))


@pytest.mark.parametrize("name", PAIRS)
def test_integers_are_refused(name: str) -> None:
    with pytest.raises(DTypeError, match=rf"{name}: float tensors are needed, found .*i32\[8\]"):
        getattr(losses, name)(np.zeros(8, F32), np.zeros(8, np.int32))


@pytest.mark.parametrize(
    ("labels", "options", "error", "message"),
    [
        (np.zeros((8, 1), np.int32), {}, ShapeError, r"integer labels for logits f32\[8,4\] .* \(8,\), found \(8, 1\)"),
        (np.zeros((8, 3), F32), {}, ShapeError, r"probabilities for logits f32\[8,4\] .* \(8, 4\), found \(8, 3\)"),
        (np.zeros(8, bool), {}, DTypeError, r"integers or probabilities, found bool\[8\]"),
        (np.zeros((8, 4), F32), {"ignore_index": 0}, SettingError, "ignore_index is for integer labels"),
        (np.zeros(8, np.int32), {"weights": np.ones(3, F32)}, ShapeError, r"weights must have shape \(4,\)"),
        (
            np.zeros(8, np.int32),
            {"label_smoothing": 1.5},
            SettingError,
            r"label_smoothing must be a number in \[0, 1\]",
        ),
        (
            np.zeros(8, np.int32),
            {"label_smoothing": float("nan")},
            SettingError,
            "label_smoothing must be .* found nan",
        ),
        (np.zeros(8, np.int32), {"reduction": "average"}, SettingError, "'none' or 'sums', found 'average'"),
        (np.zeros(8, np.int32), {"axis": 2}, ShapeError, "axis 2"),
    ],
)
def test_cross_entropy_refuses(labels: np.ndarray, options: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        losses.cross_entropy(np.zeros((8, 4), F32), labels, **options)


def test_logits_must_be_float() -> None:
    with pytest.raises(DTypeError, match=r"logits are float, found i32\[8,4\]"):
        losses.cross_entropy(np.zeros((8, 4), np.int32), np.zeros(8, np.int32))


@pytest.mark.parametrize("name", PAIRS)
def test_reductions_agree(name: str) -> None:
    rng = np.random.default_rng(5)
    first, second = rng.uniform(0.1, 1, (2, 4, 3)).astype(F32)
    loss = getattr(losses, name)
    none = loss(first, second, reduction="none")
    assert none.shape == ((4,) if name == "kl_divergence" else (4, 3))
    np.testing.assert_allclose(loss(first, second, reduction="sum"), none.sum(), rtol=1e-6)
    np.testing.assert_allclose(loss(first, second), none.mean(), rtol=1e-6)
    total, count = loss(first, second, reduction="sums")
    np.testing.assert_allclose(total, none.sum(), rtol=1e-6)
    assert (count, count.dtype) == (none.size, F32)
    with pytest.raises(SettingError, match=f"{name}: reduction must be"):
        loss(first, second, reduction="median")


def test_a_mean_of_many_bf16_is_exact() -> None:
    """A bf16 accumulator would stop at 256."""
    ones = np.ones(70000, ag.spec((), "bf16").dtype)
    loss = losses.mean_squared_error(ones, ones * 0)
    assert loss.dtype == np.float32
    assert loss == 1
