"""Groups of parameters with optimizers of their own, and frozen parameters."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import antegrad as ag
from antegrad import losses, nn, ops, optim, random, tree
from antegrad.errors import SettingError, ShapeError
from tests.support import devices

F32 = np.float32
RATE = optim.schedules.linear_warmup(1.0, 4)


def model(value: float = 1.0) -> dict[str, Any]:
    layer = {"b": np.full(2, value, F32), "w": np.full((2, 2), value, F32)}
    return {"embed": np.full((3, 2), value, F32), "blocks": [tree.map(np.copy, layer), tree.map(np.copy, layer)]}


def is_vector(path: str, parameter: Any) -> bool:
    return parameter.ndim == 1


def train(optimizer: optim.Optimizer, parameters: Any, gradients: list[Any], device: str = "host") -> tuple[Any, Any]:
    def step(parameters: Any, state: Any, gradients: Any) -> Any:
        updates, state = optimizer.update(gradients, state, parameters)
        return optim.apply_updates(parameters, updates), state

    state = optimizer.init(parameters)
    program = ag.simplify(ag.capture(step, parameters, state, parameters))
    for gradient in gradients:
        parameters, state = program.run(parameters, state, gradient, device=device)
    return parameters, state


def gradients(count: int = 3) -> list[Any]:
    rng = np.random.default_rng(0)
    return [tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(F32), model()) for _ in range(count)]


# Groups


@pytest.mark.parametrize("device", devices())
def test_each_group_is_trained_as_if_there_were_no_others(device: str) -> None:
    parts = {"embed": optim.sgd(0.1, 0.9), "blocks.?.w": optim.adamw(0.01, weight_decay=0.1), "rest": optim.lion(0.01)}
    optimizer = optim.groups({"embed": parts["embed"], "blocks.?.w": parts["blocks.?.w"]}, default=parts["rest"])
    found, _ = train(optimizer, model(), gradients(), device)
    owners = {"embed": "embed", **{f"blocks.{n}.w": "blocks.?.w" for n in (0, 1)}}
    for path, leaf in tree.named_leaves(found).items():
        alone = [{path: tree.named_leaves(draws)[path]} for draws in gradients()]
        part = parts[owners.get(path, "rest")]
        expected, _ = train(part, {path: tree.named_leaves(model())[path]}, alone, device)
        np.testing.assert_array_equal(leaf, expected[path], err_msg=path)


def test_a_mask_chooses_and_nothing_need_be_left() -> None:
    optimizer = optim.groups({is_vector: optim.sgd(1.0), "embed": optim.sgd(2.0), "*.w": optim.sgd(3.0)})
    found, _ = train(optimizer, model(0.0), [model(-1.0)])
    moved = {path: float(leaf.flat[0]) for path, leaf in tree.named_leaves(found).items()}
    assert moved == {"blocks.0.b": 1, "blocks.0.w": 3, "blocks.1.b": 1, "blocks.1.w": 3, "embed": 2}


def test_the_state_is_named_by_kind_and_path() -> None:
    optimizer = optim.groups({"embed": optim.lion(0.1), is_vector: optim.lion(0.1)}, optim.sgd(0.1))
    assert optimizer.kind == "lion|lion|sgd"
    assert sorted(tree.named_leaves(optimizer.init(model()))) == [
        *("lion.count", "lion.m.embed", "lion_2.count", "lion_2.m.blocks.0.b", "lion_2.m.blocks.1.b", "sgd.count"),
    ]


def test_a_module_is_given_updates_of_its_structure() -> None:
    layer = nn.Dense(3, 2, key=random.key(0))
    optimizer = optim.groups({"w": optim.adam(0.1)}, optim.sgd(0.1))
    updates, _ = optimizer.update(layer, optimizer.init(layer), layer)
    assert tree.structure(updates) == tree.structure(layer)
    assert isinstance(optim.apply_updates(layer, updates), nn.Dense)


def test_readings_of_groups() -> None:
    clipped = optim.chain(optim.clip_by_global_norm(1.0), optim.sgd(0.25))
    optimizer = optim.groups({"embed": optim.adam(RATE), is_vector: clipped}, optim.adam(0.5))
    bad = model()
    bad["blocks"][0]["b"][0] = np.nan
    found, state = train(optimizer, model(), [bad])
    assert {key: float(reading(state)) for key, reading in optimizer.readings.items()} == {
        "learning_rate": 0.5,
        "skipped": 1,
        "learning_rate_clip_by_global_norm+sgd": 0.25,
        "learning_rate_adam_2": 0.5,
    }
    assert (found["blocks"][0]["b"] == 1).all()
    assert (found["blocks"][0]["w"] != 1).all()


def test_a_step_left_out_outside_is_left_out_in_all_groups() -> None:
    inner = optim.groups({"embed": optim.adam(0.1)}, optim.sgd(0.1))
    bad = model()
    bad["embed"][0, 0] = np.inf
    found, state = train(optim.chain(optim.clip_by_global_norm(1.0), inner), model(), [bad])
    assert all((leaf == 1).all() for leaf in tree.leaves(found))
    assert [int(state["adam|sgd"][name]["count"]) for name in ("adam", "sgd")] == [0, 0]


def test_a_default_without_parameters_keeps_in_step() -> None:
    optimizer = optim.groups({"*": optim.sgd(1.0)}, optim.adam(RATE))
    _, state = train(optimizer, model(), gradients(2))
    assert int(state["adam"]["count"]) == 2
    assert optimizer.readings["learning_rate_adam"](state) == 0.75


def test_parameters_without_one_optimizer_are_named() -> None:
    with pytest.raises(SettingError) as found:
        optim.groups({"blocks.0.*": optim.sgd(1.0), "*.w": optim.sgd(1.0), "embd": optim.adam(1.0)}).init(model())
    assert str(found.value) == (
        "groups: every parameter needs one optimizer, and every choice a parameter\n"
        "  chosen by none (2): blocks.1.b, embed\n"
        "  chosen twice (1): blocks.0.w\n"
        "  choosing no parameter (1): 'embd'"
    )
    optimizer = optim.groups({"a": optim.sgd(1.0)}, optim.adam(1.0))
    with pytest.raises(SettingError, match=r"choosing no parameter \(1\): 'a'"):
        optimizer.update({"b": np.ones(1, F32)}, {}, {"b": np.ones(1, F32)})


def test_gradients_of_groups_must_fit() -> None:
    optimizer = optim.groups({"a": optim.sgd(1.0)}, optim.adam(1.0))
    parameters = {"a": np.ones(2, F32), "b": np.ones(3, F32)}
    with pytest.raises(ShapeError, match="groups: at 'b' parameters has shape"):
        optimizer.update({"a": np.ones(2, F32)}, optimizer.init(parameters), parameters)


def test_what_makes_no_group_is_refused() -> None:
    for make, message in (
        (lambda: optim.groups({}), "groups: at least one"),
        (lambda: optim.groups({"a": 0.1}), "groups: what trains parameters must be an Optimizer, found 0.1"),  # pyright: ignore
        (lambda: optim.groups({3: optim.sgd(0.1)}), "groups: a choice of parameters must be a pattern or a mask"),  # pyright: ignore
        (lambda: optim.groups({"a": optim.sgd(0.1)}, "adam"), "groups: what trains parameters must be"),  # pyright: ignore
        (lambda: optim.freeze("adam", "a"), "freeze: what trains parameters must be an Optimizer"),  # pyright: ignore
        (lambda: optim.freeze(optim.sgd(0.1), None), "freeze: a choice of parameters must be"),  # pyright: ignore
    ):
        with pytest.raises(SettingError, match=message):
            make()


# Decay


def test_the_report_of_an_optimizer_is_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    decayed = optim.adamw(0.1, weight_decay=0.1, mask=optim.decay_matrices)
    for optimizer, expected in [
        (decayed, {"blocks.0.w", "blocks.1.w", "embed"}),
        (optim.adamw(0.1, weight_decay=0.0), set()),
        (optim.adam(0.1), set()),
        (optim.sgd(0.1, weight_decay=0.1), {"blocks.0.b", "blocks.0.w", "blocks.1.b", "blocks.1.w", "embed"}),
        (optim.chain(optim.add_decayed_weights(0.1, is_vector), optim.rmsprop(0.1)), {"blocks.0.b", "blocks.1.b"}),
        (optim.lion(0.1, weight_decay=0.1, mask=is_vector), {"blocks.0.b", "blocks.1.b"}),
        (optim.rmsprop(0.1, weight_decay=0.1, mask=is_vector), {"blocks.0.b", "blocks.1.b"}),
        (optim.adafactor(0.1, weight_decay=0.1, mask=is_vector), {"blocks.0.b", "blocks.1.b"}),
        (optim.muon(0.1, "*.w", weight_decay=0.1, mask=optim.decay_matrices), {"blocks.0.w", "blocks.1.w", "embed"}),
        (optim.muon(0.1, "*.w", weight_decay=0.1, rest=optim.adam(0.1)), {"blocks.0.w", "blocks.1.w"}),
        (optim.freeze(decayed, "embed"), {"blocks.0.w", "blocks.1.w"}),
        (optim.groups({"embed": optim.sgd(0.1), is_vector: optim.adam(0.1)}, decayed), {"blocks.0.w", "blocks.1.w"}),
        (optim.chain(optim.clip_by_global_norm(1.0), decayed, optim.ema(0.9)), {"blocks.0.w", "blocks.1.w", "embed"}),
    ]:
        found, _ = train(optimizer, model(), [model(0.0)])
        shrunk = {path for path, leaf in tree.named_leaves(found).items() if (leaf < 1).all()}
        still = {path for path, leaf in tree.named_leaves(found).items() if (leaf == 1).all()}
        assert (shrunk, still) == (expected, {*tree.named_leaves(model())} - expected), optimizer.kind
        optim.decay_report(model(), optimizer)
        listed = capsys.readouterr().out.partition("no weight decay")[0].splitlines()[1:]
        assert {line.split()[0] for line in listed} == expected, optimizer.kind


# Freeze


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [F32, ml_dtypes.bfloat16])
def test_frozen_parameters_keep_every_bit(dtype: Any, device: str) -> None:
    """-0.0 and what is not finite as well."""
    frozen = np.array([-0.0, 0.0, 1.5, -np.inf, np.nan], dtype)
    parameters = {"a": frozen, "b": np.ones(2, dtype)}
    draws = [{"a": np.full(5, np.nan, dtype), "b": np.ones(2, dtype)}] * 3
    found, _ = train(optim.freeze(optim.adamw(0.1), "a"), parameters, draws, device)
    assert found["a"].tobytes() == frozen.tobytes()
    assert (found["b"] < 1).all()


def test_frozen_parameters_keep_every_bit_at_once() -> None:
    parameters = {"a": np.array([-0.0, 0.0], F32), "b": np.ones(2, F32)}
    optimizer = optim.freeze(optim.adam(0.1), lambda path, parameter: path == "a")
    updates, _ = optimizer.update(parameters, optimizer.init(parameters), parameters)
    assert optim.apply_updates(parameters, updates)["a"].tobytes() == parameters["a"].tobytes()


def test_frozen_parameters_have_no_state() -> None:
    optimizer = optim.freeze(optim.adam(0.1), "embed")
    assert optimizer.kind == "frozen|adam"
    assert sorted(tree.named_leaves(optimizer.init(model()))) == [
        "adam.count",
        *(f"adam.{slot}.blocks.{n}.{name}" for slot in "mv" for n in (0, 1) for name in "bw"),
    ]


def test_the_others_are_trained_as_without_the_frozen_ones() -> None:
    inner = optim.chain(optim.clip_by_global_norm(1.0), optim.adam(0.1))
    found, state = train(optim.freeze(inner, "embed"), model(), gradients())
    rest = [{"blocks": draws["blocks"]} for draws in (model(), *gradients())]
    expected, _ = train(inner, rest[0], rest[1:])
    for leaf, other in zip(tree.leaves(found["blocks"]), tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(leaf, other)
    assert int(state["clip_by_global_norm+adam"]["adam"]["count"]) == 3


def two_layers() -> Any:
    return nn.Sequential(nn.Dense(4, 8, key=random.key(0)), ops.tanh, nn.Dense(8, 2, key=random.key(1)))


@pytest.mark.parametrize("inner", [optim.adamw(0.1), optim.chain(optim.clip_by_global_norm(1.0), optim.adam(0.1))])
def test_the_gradient_of_what_is_frozen_is_not_computed(inner: optim.Optimizer) -> None:
    """Neither the products for the weights of the first layer, nor the way back through the activation."""
    x, y = np.ones((5, 4), F32), np.ones((5, 2), F32)
    whole = ag.train_step(two_layers(), losses.mean_squared_error, inner, x, y).step
    frozen = ag.train_step(two_layers(), losses.mean_squared_error, optim.freeze(inner, "0.*"), x, y).step

    def dots(program: ag.Program) -> int:
        return sum(equation.primitive.name == "dot_general" for equation in program.equations)

    assert (dots(whole), dots(frozen)) == (5, 3)
    new = dict(zip(frozen.output_names, frozen.outputs, strict=True))
    old = dict(zip(frozen.input_names, frozen.inputs, strict=True))
    for name in ("0.w", "0.b"):
        assert new[f"new.{name}"] is old[name]


def test_a_skipped_step_keeps_every_bit() -> None:
    parameters = {"a": np.array([-0.0, 1.0], F32)}
    optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.sgd(0.1))
    found, _ = train(optimizer, parameters, [{"a": np.array([np.nan, 1.0], F32)}])
    assert found["a"].tobytes() == parameters["a"].tobytes()


def test_a_frozen_state_is_saved_and_resumed(tmp_path: Any) -> None:
    x, y = np.ones((5, 4), F32), np.ones((5, 2), F32)
    optimizer = optim.chain(optim.freeze(optim.adamw(0.1), "0.*"), optim.ema(0.9))
    step = ag.train_step(two_layers(), losses.mean_squared_error, optimizer, x, y)
    state = step.init()
    _, *arrays = step.step.run(*state.arrays, x, y)
    state = state.with_arrays(arrays)
    step.save(tmp_path / "state.safetensors", state)
    restored = step.load(tmp_path / "state.safetensors")
    for name, array in state.named_arrays.items():
        np.testing.assert_array_equal(restored.named_arrays[name], array, err_msg=name)
    assert int(restored.named_arrays["opt.ema.count"]) == 1
