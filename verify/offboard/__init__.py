"""Executes the output of an NPU's Triton compiler on the CPU, to test kernels without an NPU.

`compiler` stops triton-ascend at its linalg IR, `lint` checks that IR, and `native` compiles it to machine code.
`device` emulates an NPU for torch, and `driver` is the driver through which triton-ascend launches. See README.md.
"""
