"""The router of a mixture of experts."""
