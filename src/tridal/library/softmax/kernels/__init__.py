"""The Triton functions of the ops of this folder."""
