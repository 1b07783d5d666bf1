"""Training steps: the four programs, many steps in one dispatch, and state that comes back from a file."""

from __future__ import annotations

import numpy as np
import pytest

import antegrad as ag
from antegrad import losses, nn, optim, random, train

X = np.asarray(random.normal(random.key(1), (32, 3)))
Y = np.tanh(X @ np.ones((3, 2), np.float32))


def build(seed: int = 0) -> nn.Sequential:
    first, second = random.split(random.key(seed))
    return nn.Sequential(nn.Dense(3, 8, key=first), nn.tanh, nn.Dense(8, 2, key=second))


def make(optimizer=None) -> train.TrainStep:
    return ag.train_step(build(), losses.mean_squared_error, optimizer or optim.adam(0.01), X, Y)


OPTIMIZERS = {
    "sgd": lambda: optim.sgd(0.1),
    "momentum": lambda: optim.sgd(0.1, momentum=0.9),
    "adam": lambda: optim.adam(0.01),
    "adamw": lambda: optim.adamw(0.01, weight_decay=0.1),
    "clipped": lambda: optim.chain(optim.clip_by_global_norm(0.1), optim.adam(optim.schedules.cosine(0.01, 10))),
}


def test_the_programs_compose():
    """gradient, then update, gives what the fused step gives, bit for bit on the host."""
    step = make()
    state = step.init()
    parameters, optimizer = state.arrays[:4], state.arrays[4:]
    loss, *gradients = step.gradient.run(*parameters, X, Y, device="host")
    after = step.update.run(*parameters, *gradients, *optimizer, device="host")
    fused_loss, *fused = step.step.run(*state.arrays, X, Y, device="host")
    assert loss.tobytes() == fused_loss.tobytes() == step.forward.run(*parameters, X, Y, device="host").tobytes()
    assert [a.tobytes() for a in after] == [a.tobytes() for a in fused]


def test_names():
    step = make()
    assert step.forward.input_names == ("0.w", "0.b", "2.w", "2.b", "x", "y")
    assert step.gradient.output_names == ("loss", "d_0.w", "d_0.b", "d_2.w", "d_2.b")
    assert "opt.m.0.w" in step.state_names
    assert "opt.count" in step.state_names
    assert step.step.output_names[0] == "loss"
    assert step.step.output_names[1:] == tuple(f"new.{name}" for name in step.state_names)


def test_the_update_has_a_section_of_its_own():
    text = make().step.python()
    assert text.index("# forward") < text.index("# backward") < text.index("# update")


@pytest.mark.parametrize("device", ["host", "cpu"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_lowers_the_loss(name, device):
    step = make(OPTIMIZERS[name]())
    run = ag.compile(train.repeat(step, 50), device=device, donate=step.state_names)
    found, *_ = run(*step.init().arrays, X, Y)
    found = np.asarray(found)
    assert found[-1] < 0.7 * found[0]
    assert np.all(np.isfinite(found))


@pytest.mark.parametrize("device", ["host", "cpu"])
def test_results_do_not_depend_on_the_steps_of_a_dispatch(device):
    step = make()
    single = ag.compile(step.step, device=device)
    arrays, one_by_one = step.init().arrays, []
    for _ in range(12):
        loss, *arrays = single(*arrays, X, Y)
        one_by_one.append(float(loss))
    for size in (3, 12):
        many = ag.compile(train.repeat(step, size), device=device)
        state, found = step.init().arrays, []
        for _ in range(12 // size):
            chunk, *state = many(*state, X, Y)
            found += np.asarray(chunk).tolist()
        assert found == one_by_one
        assert [np.asarray(a).tobytes() for a in state] == [np.asarray(a).tobytes() for a in arrays]


def test_stacked_batches_are_taken_one_a_step():
    step = make()
    xs, ys = np.stack([X, -X, 2 * X]), np.stack([Y, -Y, Y])
    found, *after = train.repeat(step, 3, stacked=True).run(*step.init().arrays, xs, ys, device="host")
    arrays = step.init().arrays
    for number in range(3):
        loss, *arrays = step.step.run(*arrays, xs[number], ys[number], device="host")
        assert loss == found[number]
    assert [a.tobytes() for a in after] == [a.tobytes() for a in arrays]


def test_a_run_resumes_bit_for_bit(tmp_path):
    step = make()
    run = ag.compile(train.repeat(step, 5), device="cpu")
    _, *middle = run(*step.init().arrays, X, Y)
    losses_straight, *end = run(*middle, X, Y)
    step.save(tmp_path / "s.safetensors", step.init().with_arrays(middle), seed=7, user={"note": "half-way"})
    fresh = make()
    state = fresh.load(tmp_path / "s.safetensors")
    assert int(state.optimizer_state["count"]) == 5
    losses_resumed, *resumed = run(*state.arrays, X, Y)
    assert np.array_equal(losses_straight, losses_resumed)
    assert [np.asarray(a).tobytes() for a in end] == [np.asarray(a).tobytes() for a in resumed]
    info = ag.checkpoint.training_info(ag.checkpoint.load(tmp_path / "s.safetensors"))
    assert (info.step, info.seed, info.user) == (5, 7, {"note": "half-way"})


def test_state_is_donated_and_aliased():
    step = make()
    run = ag.compile(step.step, device="cpu", donate=step.state_names)
    _, *arrays = run(*step.init().arrays, X, Y)
    run(*arrays, X, Y)
    assert all(array.is_deleted() for array in arrays)
    assert "input_output_alias" in run.hlo()


def test_training_compiles_once():
    step = make()
    run = ag.compile(step.step, device="cpu", donate=step.state_names)
    arrays = step.init().arrays
    for _ in range(3):
        _, *arrays = run(*arrays, X, Y)
    assert run.executables == 1


def test_a_field_that_is_no_array_is_named():
    class Scaled(nn.Module):
        dense: nn.Dense
        gain: float = 0.5

        def __call__(self, x):
            return self.dense(x) * self.gain

    model = Scaled(nn.Dense(3, 2, key=random.key(0)))
    with pytest.raises(ag.TraceError, match=r"gain of Scaled is 0\.5.*nn\.static"):
        ag.train_step(model, losses.mean_squared_error, optim.adam(0.1), X, Y)


def test_f64_data_is_no_silent_f64_training():
    with pytest.raises(ag.DTypeError, match=r"batch's x is f64.*float32"):
        ag.train_step(build(), losses.mean_squared_error, optim.adam(0.1), X.astype(np.float64), Y)


def test_an_edited_gradient_trains():
    step = make()
    edited = ag.from_python(step.gradient.python().replace("d_b2 = ", "d_b2 = 2 * ", 1))
    state = step.init()
    parameters, optimizer = state.arrays[:4], state.arrays[4:]

    def one(parameters, optimizer, x, y):
        _, *gradients = edited(*parameters, x, y)
        return step.update(*parameters, *gradients, *optimizer)

    found = ag.capture(one, parameters, optimizer, X, Y).run(parameters, optimizer, X, Y, device="host")
    _, *plain = step.gradient.run(*parameters, X, Y, device="host")
    plain[3] = 2 * plain[3]
    expected = step.update.run(*parameters, *plain, *optimizer, device="host")
    assert [a.tobytes() for a in found] == [a.tobytes() for a in expected]


def test_wrong_use():
    with pytest.raises(ag.TraceError, match=r"\(x, y\)"):
        ag.train_step(build(), losses.mean_squared_error, optim.adam(0.1))
    with pytest.raises(ag.ShapeError, match=r"scalar.*f32\[32,2\]"):
        ag.train_step(build(), lambda prediction, y: prediction - y, optim.adam(0.1), X, Y)
    with pytest.raises(ag.ShapeError, match="at least one step"):
        train.repeat(make(), 0)


def test_the_state_gives_model_and_optimizer_back():
    state = make().init()
    np.testing.assert_array_equal(state.model[0].w, build()[0].w)
    assert set(state.optimizer_state) == {"count", "m", "v"}
    assert {"param.0.w", "opt.m.0.w", "opt.count"} <= set(state.named_arrays)
