"""Registries of the parts that a configuration names: norms, activations, position schemes, cells and architectures."""

from typing import Any

from npx.registry import Registry

# Each entry builds a layer or a model. The comments give its arguments, then the layer's input and output shapes.
NORMS: Registry[Any] = Registry("norm_type")  # (d_model, eps): (..., D) -> (..., D), layers/norm.py
ACTIVATIONS: Registry[Any] = Registry("activation")  # (d_model, d_ff): (..., D) -> (..., F), layers/feed_forward.py
POSITIONS: Registry[Any] = Registry("positions")  # (d_model, max_positions): same shapes as NORMS, layers/positions.py
CELLS: Registry[Any] = Registry("cell")  # (d_in, d_hidden): (..., D) -> (..., H), layers/recurrent.py
ARCHITECTURES: Registry[Any] = Registry("architecture")  # (config, seed, dtype): a model, architectures/
architecture = ARCHITECTURES.register
