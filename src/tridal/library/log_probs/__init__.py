"""Log-probabilities and entropies of tokens, from logits or from the input of a linear layer."""
