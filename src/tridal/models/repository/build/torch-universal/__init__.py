"""A kernel repository for Hugging Face's package `kernels`, for every backend: the layers of the installed tridal."""

from tridal.models import layers as layers
