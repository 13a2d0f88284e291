"""In which types descriptors give cuDNN their attributes; no library is asked."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dnnops.graph.descriptors import Descriptor, Double, Fractions
from dnnops.graph.names import data_type


@pytest.fixture
def given(monkeypatch):
    """Return a descriptor, and the types and elements of the attributes that it gets."""
    found = []
    monkeypatch.setattr(
        Descriptor, "set_as", lambda own, name, kind, elements: found.append((kind, [*elements]))
    )
    made = Descriptor.__new__(Descriptor)
    made._kept = []
    return made, found


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (0.5, "FLOAT"),
        (Double(0.5), "DOUBLE"),
        (True, "BOOLEAN"),
        (3, "INT64"),
        ([4, 5], "INT64"),
        ((), "INT64"),
        (Fractions([1, 2]), "FRACTION"),
    ],
)
def test_types_of_values(given, value, kind):
    made, found = given
    made.set("ATTRIBUTE", value)
    assert found == [(kind, list(value) if isinstance(value, list | tuple) else [value])]


def test_members_of_enums_and_descriptors(given, monkeypatch):
    made, found = given
    monkeypatch.setattr(data_type, "value_in_c", lambda own: f"C {own.name}", raising=False)
    made.set("ATTRIBUTE", [data_type.HALF, data_type.FLOAT])
    assert found.pop() == (data_type.HALF.attribute_type(), ["C HALF", "C FLOAT"])
    other = Descriptor.__new__(Descriptor)
    other.handle = SimpleNamespace()
    made.set("ATTRIBUTE", other)
    assert found == [("BACKEND_DESCRIPTOR", [other.handle])]
    assert made._kept == [other]
