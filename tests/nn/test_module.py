"""Modules as frozen pytrees, with parameters by path and layers that name themselves."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import threading

import jax
import numpy as np
import pytest

import antegrad as ag
from antegrad import nn, ops, random, tree


def dense(inputs: int, outputs: int, seed: int = 0, **keywords) -> nn.Dense:
    return nn.Dense(inputs, outputs, key=random.key(seed), **keywords)


class Block(nn.Module):
    first: nn.Dense
    rest: dict[str, nn.Dense]
    scale: float = nn.static(default=2.0)

    def __call__(self, x):
        return self.rest["out"](ops.relu(self.first(x))) * self.scale


class Outer(nn.Module):
    blocks: tuple[Block, ...]
    gain: np.ndarray

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return x * self.gain


def outer() -> Outer:
    blocks = tuple(Block(dense(4, 8, i), {"out": dense(8, 4, i + 10)}) for i in range(2))
    return Outer(blocks, np.ones(4, np.float32))


def test_sequential_names_parameters_by_layer():
    model = nn.Sequential(dense(2, 16), nn.relu, dense(16, 16), nn.relu, dense(16, 1))
    assert list(model.named_parameters()) == ["0.w", "0.b", "2.w", "2.b", "4.w", "4.b"]
    assert model.parameter_count() == 2 * 16 + 16 + 16 * 16 + 16 + 16 + 1
    assert len(model) == 5
    assert model[2].w.shape == (16, 16)


def test_paths_go_through_fields_tuples_and_dicts():
    names = list(outer().named_parameters())
    assert names[:4] == ["blocks.0.first.w", "blocks.0.first.b", "blocks.0.rest.out.w", "blocks.0.rest.out.b"]
    assert names[-1] == "gain"


def test_a_module_is_a_pytree_for_jax():
    model = outer()
    doubled = jax.tree_util.tree_map(lambda leaf: 2 * leaf, model)
    assert isinstance(doubled, Outer)
    assert doubled.blocks[0].scale == 2.0
    np.testing.assert_array_equal(doubled.gain, 2 * model.gain)
    assert tree.structure(model) == tree.structure(doubled)


def test_static_fields_are_part_of_the_structure():
    a = Block(dense(4, 8), {"out": dense(8, 4)})
    b = Block(dense(4, 8), {"out": dense(8, 4)}, scale=3.0)
    assert tree.structure(a) != tree.structure(b)


def test_modules_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        dense(2, 3).w = 0  # pyright: ignore[reportAttributeAccessIssue]


class Net(nn.Module):
    first: nn.Dense
    second: nn.Dense
    scale: float = nn.static(default=1.0)

    def __init__(self, width, leave_out=False):
        self.first = dense(2, width)
        if not leave_out:
            self.second = dense(width, 1)

    def __call__(self, x):
        return self.second(self.first(x)) * self.scale


def test_fields_can_be_set_in_init():
    net = Net(3)
    assert list(net.named_parameters()) == ["first.w", "first.b", "second.w", "second.b"]
    assert net.scale == 1.0
    doubled = tree.map(lambda leaf: 2 * leaf, net)
    np.testing.assert_array_equal(doubled.first.w, 2 * net.first.w)
    with pytest.raises(dataclasses.FrozenInstanceError, match=r"Net\.first cannot be set: a module does not change"):
        net.first = dense(2, 3)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot be deleted"):
        del net.first
    assert copy.deepcopy(net).first is not net.first
    assert pickle.loads(pickle.dumps(net)).named_parameters().keys() == net.named_parameters().keys()


def test_init_must_set_all_fields_and_no_others():
    with pytest.raises(ag.NameMissing, match="Net: __init__ has not set second"):
        Net(3, leave_out=True)

    class Careless(nn.Module):
        def __init__(self):
            self.d = 1

    with pytest.raises(ag.NameMissing, match=r"Careless has no field 'd'; .*above __init__"):
        Careless()


def test_set_refuses_what_is_no_field():
    class Careless(nn.Module):
        def __init__(self):
            self._set(d=1)

    with pytest.raises(ag.NameMissing, match=r"Careless has no field 'd'"):
        Careless()


def test_no_bias_means_no_parameter():
    layer = dense(2, 3, bias=False)
    assert list(layer.named_parameters()) == ["w"]
    x = np.ones((5, 2), np.float32)
    np.testing.assert_allclose(layer(x), x @ layer.w, rtol=1e-6)


def test_dense_is_affine_on_the_last_axis(rng):
    layer = dense(3, 2)
    x = rng.normal(size=(4, 5, 3)).astype(np.float32)
    np.testing.assert_allclose(layer(x), np.asarray(x) @ layer.w + layer.b, rtol=1e-6)


def test_dense_draws_with_its_initializer_and_key():
    ones = dense(3, 2, initializer=nn.initializers.ones)
    np.testing.assert_array_equal(ones.w, np.ones((3, 2), np.float32))
    np.testing.assert_array_equal(dense(3, 2, 7).w, dense(3, 2, 7).w)
    assert not np.array_equal(dense(3, 2, 7).w, dense(3, 2, 8).w)
    assert dense(3, 2, dtype="bf16").w.dtype == ag.spec((), "bf16").dtype


def test_with_parameters_gives_the_model_other_arrays():
    model = outer()
    changed = {name: value + 1 for name, value in model.named_parameters().items()}
    np.testing.assert_array_equal(model.with_parameters(changed).gain, model.gain + 1)


def test_with_parameters_lists_every_misfit_in_one_message():
    parameters = dense(2, 3).named_parameters()
    wrong = {"w": np.zeros((3, 3), np.float32), "extra": parameters["b"]}
    with pytest.raises(ag.CheckpointError) as caught:
        dense(2, 3).with_parameters(wrong)
    for part in ("missing b (f32[3])", "unknown extra (f32[3])", "w is f32[3,3], the model has f32[2,3]"):
        assert part in str(caught.value)


def layers_of(program: ag.Program) -> set[str]:
    return {equation.source.layer for equation in program.equations}


def test_equations_know_their_layer():
    program = ag.capture(lambda model, x: model(x), outer(), ag.spec((3, 4)))
    assert {"blocks.0.first", "blocks.0", "blocks.1.rest.out", "blocks.1"} <= layers_of(program)


def test_a_model_from_a_closure_knows_its_layers_too():
    model = outer()
    assert "blocks.1.first" in layers_of(ag.capture(lambda x: model(x), ag.spec((3, 4))))


def test_a_module_that_is_no_part_of_the_one_being_called_goes_by_its_class():
    stray = dense(4, 4)

    class Caller(nn.Module):
        own: nn.Dense

        def __call__(self, x):
            return stray(self.own(x))

    program = ag.capture(lambda model, x: model(x), Caller(dense(4, 4)), ag.spec((3, 4)))
    assert {"own", "Dense"} <= layers_of(program)


def test_an_exception_in_a_layer_leaves_no_layer_behind():
    with pytest.raises(ag.ShapeError):
        outer()(np.zeros((3, 5), np.float32))
    program = ag.capture(lambda x: x + 1, ag.spec((3,)))
    assert layers_of(program) <= {""}


def test_two_threads_do_not_mix_their_layers():
    found = {}

    def work(name, model, x):
        for _ in range(20):
            found.setdefault(name, set()).update(layers_of(ag.capture(lambda m, x: m(x), model, x)))

    jobs = [("outer", outer(), ag.spec((3, 4))), ("dense", nn.Sequential(dense(4, 4)), ag.spec((3, 4)))]
    threads = [threading.Thread(target=work, args=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found["dense"] <= {"", "0"}
    assert "blocks.0.first" in found["outer"]


def test_find_and_submodules():
    model = outer()
    assert nn.find(model, "blocks.1.first") is model.blocks[1].first
    assert [path for path, _ in nn.submodules(model)][:2] == ["", "blocks.0"]
    with pytest.raises(ag.NameMissing, match=r"blocks\.2.*blocks\.1"):
        nn.find(model, "blocks.2")


def test_repr_shows_types_and_not_numbers():
    assert repr(dense(2, 3)) == "Dense(w=f32[2,3], b=f32[3])"
    assert "function=relu" in repr(nn.Sequential(nn.relu))
