"""RMSNorm of the heads of query and key with rotary embedding."""
