"""Tests kernels without an NPU: executes the output of triton-ascend, the Triton compiler for NPUs, on the CPU.

`compiler` stops triton-ascend at its linalg IR, `lint` checks that IR, and `native` compiles it to machine code.
`device` emulates an NPU for torch, and `driver` is the driver through which triton-ascend launches. See README.md.
"""
