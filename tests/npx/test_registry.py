"""Registries (npx/registry.py)."""

import pytest

from npx.registry import Registry, UnknownName


def test_an_unknown_name_is_a_key_error_and_a_value_error_with_a_readable_message():
    registry = Registry("kernel")
    registry.add("softmax", 1)
    with pytest.raises(UnknownName) as error:
        registry["sofmax"]
    assert isinstance(error.value, KeyError) and isinstance(error.value, ValueError)
    assert str(error.value) == "kernel: expected one of softmax; got 'sofmax'; try softmax"
    assert "sofmax" not in registry and registry.get("sofmax") is None
