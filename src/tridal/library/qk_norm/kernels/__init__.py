"""The Triton functions of the norm of heads with rotary embedding."""
