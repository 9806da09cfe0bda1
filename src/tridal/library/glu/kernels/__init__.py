"""The Triton functions of gated linear units."""
