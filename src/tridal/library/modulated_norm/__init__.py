"""LayerNorm and RMSNorm with a scale and a shift per token or per batch."""
