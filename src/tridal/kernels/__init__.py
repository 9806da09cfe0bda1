"""The kernels: Triton sources that know nothing of tridal."""
