"""RMSNorm with a gate."""
