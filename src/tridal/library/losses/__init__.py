"""Cross-entropy, and cross-entropy of a linear layer without its logits."""
