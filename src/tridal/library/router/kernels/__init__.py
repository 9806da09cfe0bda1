"""The Triton functions of the router."""
