"""The garbage collector is as it was after a pass, whatever happened in it."""

from __future__ import annotations

import gc

import pytest

import antegrad as ag
from antegrad import ops
from antegrad.ir.collection import collection_paused


def test_collection_is_paused_within_and_restored_after():
    with collection_paused():
        assert not gc.isenabled()
        with collection_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_stays_off_for_those_who_turned_it_off():
    gc.disable()
    try:
        with collection_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_refused_gradient_leaves_it_on():
    with pytest.raises(ag.ShapeError):
        ag.reverse(ag.capture(lambda x: ops.sin(x), ag.spec((3,))))
    assert gc.isenabled()
