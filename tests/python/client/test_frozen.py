"""Values: frozen, slotted, and accepted by the functions of `dataclasses`."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from datetime import UTC, datetime

import pytest

import topics_engine as te
from topics_engine.frozen import Frozen, frozen

GAP = te.Gap("t", 1, 2, "cap")
RECORD = te.Record("t", 7, 1000, None, "eu", {"k": "v"}, b'{"n": 1}', False)


def test_values_are_dataclasses() -> None:
    assert dataclasses.is_dataclass(GAP)
    assert dataclasses.is_dataclass(te.Record)
    assert [f.name for f in dataclasses.fields(GAP)] == [
        "topic", "first", "last", "reason", "missed_estimate",
    ]  # fmt: skip
    assert dataclasses.asdict(GAP) == {
        "topic": "t", "first": 1, "last": 2, "reason": "cap", "missed_estimate": 0,
    }  # fmt: skip
    assert dataclasses.replace(GAP, last=9) == te.Gap("t", 1, 9, "cap")
    assert te.Gap.__match_args__ == ("topic", "first", "last", "reason", "missed_estimate")


def test_values_are_frozen_and_have_slots() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        GAP.last = 9  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del GAP.last
    with pytest.raises(dataclasses.FrozenInstanceError):
        GAP.other = 9  # type: ignore[attr-defined]
    assert not hasattr(GAP, "__dict__")


def test_values_are_compared_hashed_copied_and_shown() -> None:
    assert repr(GAP) == "Gap(topic='t', first=1, last=2, reason='cap', missed_estimate=0)"
    assert te.Gap("t", 1, 2, "cap", 0) == GAP != te.Gap("t", 1, 3, "cap")
    assert GAP != ("t", 1, 2, "cap", 0)
    assert hash(RECORD) == hash(copy.copy(RECORD))
    for again in (pickle.loads(pickle.dumps(RECORD)), copy.deepcopy(RECORD)):
        assert again == RECORD
        assert again.data == {"n": 1}
    assert RECORD.time == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


def test_a_constructor_takes_names_and_defaults() -> None:
    signature = inspect.signature(te.NewRecord)
    assert list(signature.parameters)[:3] == ["data", "tag", "origin"]
    assert signature.parameters["ttl"].default == 0
    assert te.NewRecord(1, tag="a", lane=3) == te.NewRecord(data=1, lane=3, tag="a")
    with pytest.raises(TypeError, match="origin_"):
        te.NewRecord(1, origin_="x")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="first"):
        te.Gap("t")  # type: ignore[call-arg]


def test_hidden_fields_take_no_part() -> None:
    @frozen(hidden=("secret",), unhashed=("many",))
    class Value(Frozen):
        shown: int
        many: list[int]
        secret: object = None

    @frozen()
    class More(Value):
        more: str = "x"

    one = Value(1, [2], "a")
    assert repr(one).endswith("Value(shown=1, many=[2])")
    assert one == Value(1, [2], "b")
    assert hash(one) == hash(Value(1, [3], "b"))
    assert More(1, [2]) != one
    assert repr(More(1, [2], more="y")).endswith("More(shown=1, many=[2], more='y')")


def test_a_payload_is_decoded_once() -> None:
    data = RECORD.data
    assert data == {"n": 1}
    assert RECORD.data is data
    binary = te.Record("t", 1, 0, None, None, None, b"\xff", True)
    assert binary.data is binary.stored
