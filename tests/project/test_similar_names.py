"""Error messages: suggestions of similar names, and arguments that avoid an error, for Python and the command line."""

from __future__ import annotations

import pickle

import pytest

from tridal import errors
from tridal.errors import TridalError

CLASSES = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TridalError)]


@pytest.mark.parametrize("kind", CLASSES)
def test_message_ends_with_arguments_or_options(kind: type[TridalError]) -> None:
    error = kind("no plan")
    error.fixes = {"arch": "x1", "device": "y"}
    assert str(error) == "no plan; use arch='x1' or device='y'"
    assert error.for_commands() == "no plan; use --arch x1 or --device y"
    restored = pickle.loads(pickle.dumps(error))
    assert (type(restored), str(restored), restored.fixes) == (kind, str(error), error.fixes)


@pytest.mark.parametrize(
    ("word", "expected"),
    [("cuba", "; did you mean 'cuda'?"), ("CUDA", "; did you mean 'cuda'?"), ("xyz", "")],
)
def test_nearest_suggests_similar_names_in_any_case(word: str, expected: str) -> None:
    assert errors.nearest(word, ["cuda", "interpreter"]) == expected
