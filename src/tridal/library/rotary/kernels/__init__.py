"""The Triton functions of rotary embedding."""
