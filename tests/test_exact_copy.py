"""Copies of data of plugins: each field is read once, and a copy has no part of a type that a plugin defines."""

from __future__ import annotations

import enum
from collections import UserDict, namedtuple
from dataclasses import fields
from typing import Any

import numpy
import pytest

from tridal.devices.plugin_data import exact_copy
from tridal.devices.types import DeviceProperties, KernelConfig, LaunchPlan, Option, Problem, Resources

CONFIG = KernelConfig("whole_row", 4, 8)
PLAN = LaunchPlan(CONFIG, 2, "because", resources=Resources(1, 2, 3))
DEVICE = DeviceProperties("Toy", "toy1", 2, target=("toy", 1, 32), aliases=("t1",))


class Name(str, enum.Enum):
    whole_row = "whole_row"

    def __str__(self) -> str:
        return "something else"


@pytest.mark.parametrize("data", [CONFIG, PLAN, DEVICE, Problem(8, 4), Option(1, "one", bool), PLAN.resources])
def test_copy_of_a_subclass_has_the_type_of_the_protocol_and_equal_fields(data: Any) -> None:
    class Lazy(type(data)):  # type: ignore[misc]
        pass

    copied = exact_copy(Lazy(**{field.name: getattr(data, field.name) for field in fields(data)}))
    assert type(copied) is type(data)
    assert copied == data
    assert copied is not data


def test_each_field_is_read_once() -> None:
    class Changing(KernelConfig):
        reads = 0

        def __getattribute__(self, name: str) -> Any:
            if name == "cols":
                Changing.reads += 1
                return 8 * Changing.reads
            return super().__getattribute__(name)

    copied = exact_copy(LaunchPlan(Changing("whole_row", 4, 8), 2, ""))
    assert type(copied.config) is KernelConfig
    assert [copied.config.cols, copied.config.cols] == [8, 8]
    assert Changing.reads == 1


def test_texts_and_containers_become_those_of_python() -> None:
    pair = namedtuple("pair", "first second")
    copied = exact_copy([pair(Name.whole_row, 1), UserDict({Name.whole_row: Name.whole_row}), {Name.whole_row}])
    assert type(copied) is list, "no member of a backend is a list, so a list stays as it is"
    copied = [exact_copy(part) for part in copied]
    assert copied == [("whole_row", 1), {"whole_row": "whole_row"}, {"whole_row"}]
    assert [type(part) for part in copied] == [tuple, dict, frozenset]
    assert {type(text) for part in copied for text in part} == {str, int}


@pytest.mark.parametrize("number", [True, 2.0, numpy.int64(3), Name, None])
def test_numbers_and_other_objects_stay_as_they_are(number: Any) -> None:
    assert exact_copy(number) is number
