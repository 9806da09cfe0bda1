"""Gated linear units: swiglu and geglu."""
