"""Names: identifiers from paths, and a free name for every value."""

from __future__ import annotations

import keyword

import pytest
from hypothesis import given
from hypothesis import strategies as st

import antegrad as ag
from antegrad.ir.names import RESERVED, Namer, assign_names, identifier


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("x", "x"),
        ("0.w", "w0"),
        ("d_0.w", "d_w0"),
        ("d_d_0.w", "d_d_w0"),
        ("blocks.3.w", "blocks_w3"),
        ("opt.m.0.w", "opt_m_w0"),
        ("blocks.3.mlp.w", "blocks_3_mlp_w"),
        ("lambda", "lambda_"),
        ("d_lambda", "d_lambda"),
        ("None", "None_"),
        ("np", "np_"),
        ("bfloat16", "bfloat16_"),
        ("0", "v0"),
        ("d_0", "d_0"),
        ("3d", "v3d"),
        ("a b-c", "a_b_c"),
        ("", "value"),
        ("...", "value"),
        ("größe", "größe"),
        ("x²", "x2"),
        ("ﬁt", "fit"),
        ("X", "X"),
        ("_hidden_", "hidden"),
    ],
)
def test_identifier(name: str, expected: str) -> None:
    assert identifier(name) == expected


@given(st.text(max_size=12))
def test_an_identifier_is_one(name: str) -> None:
    found = identifier(name)
    assert found.isidentifier(), found
    assert not keyword.iskeyword(found)
    assert found not in RESERVED
    scope: dict[str, int] = {}
    exec(f"{found} = 1", scope)
    assert found in scope, "Python would read another name"


@given(st.lists(st.tuples(st.sampled_from(["h", "h_1", "t", "t0", "t_1", "np", "x"]), st.booleans()), max_size=20))
def test_a_namer_never_repeats_itself(wishes: list[tuple[str, bool]]) -> None:
    namer = Namer({"x", "t1"})
    given_out = [namer.name(stem, numbered) for stem, numbered in wishes]
    assert len(set(given_out)) == len(given_out)
    assert not {"x", "t1", "np"} & set(given_out)


def test_numbers_go_up() -> None:
    namer = Namer({"t1"})
    assert [namer.name("h") for _ in range(3)] == ["h", "h_1", "h_2"]
    assert [namer.name("t", numbered=True) for _ in range(3)] == ["t0", "t2", "t3"]


def test_every_value_of_a_program_has_a_name_of_its_own() -> None:
    def function(h, t0, out):  # type: ignore[no-untyped-def]
        h_1 = h + t0
        h = h_1 * out
        return h, h_1 + h

    program = ag.capture(function, 1.0, 2.0, 3.0)
    names = assign_names(program, [v for eq in program.equations for v in eq.outputs])
    assert len(set(names.values())) == len(names) == 6
    assert list(names.values()) == ["h", "t0", "out", "h_1", "h_2", "out1"]
