"""Executes kernels of Intel's Triton on the CPU, by an OpenCL runtime. `README.md` describes it."""
