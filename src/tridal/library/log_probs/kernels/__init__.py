"""The Triton functions of log-probabilities."""
