"""The Triton functions of the gated RMSNorm."""
