"""Pickles in zip files, as in the example of Theano's docstring."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from dnnops.errors import DnnValueError


def test_dump_and_load(theano: Any, tmp_path: Any):
    from theano.misc.pkl_utils import dump, load

    first, second = theano.shared(np.zeros(2), name="foo"), theano.shared(np.ones(3), name="foo")
    array = np.array(2)
    path = tmp_path / "model.zip"
    with path.open("wb") as f:
        dump((first, second, array, array), f)
    stored = np.load(path)
    assert sorted(stored.keys()) == ["array_0", "foo", "foo_2", "pkl"]
    assert stored["foo_2"].tolist() == [1, 1, 1]
    with path.open("rb") as f:
        one, two, again, same = load(f)
    assert (one.name, one.get_value().tolist()) == ("foo", [0, 0])
    assert two.get_value().tolist() == [1, 1, 1]
    assert again == 2
    assert again is same


def test_names_of_shared_variables(theano: Any, tmp_path: Any):
    from theano.misc.pkl_utils import PersistentNdarrayID, PersistentSharedVariableID, dump, load

    path = tmp_path / "model.zip"
    pair = [theano.shared(np.zeros(2), name="foo"), theano.shared(np.ones(3), name="foo")]
    for objects, options, message in (
        (pair, {"allow_duplicates": False}, "with the name 'foo' found"),
        ([theano.shared(np.ones(3))], {"allow_unnamed": False}, "unnamed"),
        ([theano.shared(np.ones(3), name="pkl")], {}, "name 'pkl'"),
    ):
        with path.open("wb") as f, pytest.raises(DnnValueError, match=message):
            dump(objects, f, persistent_id=partial(PersistentSharedVariableID, **options))
    with path.open("wb") as f:
        dump({"a": np.array(["text"], dtype=object), "b": pair}, f, 2, PersistentNdarrayID)
    assert sorted(np.load(path, allow_pickle=True).keys()) == ["array_0", "array_1", "pkl"]
    with path.open("rb") as f:
        assert load(f)["a"].tolist() == ["text"]
