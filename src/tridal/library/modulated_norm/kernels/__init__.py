"""The Triton functions of the modulated norms."""
