"""Runs what an NPU's Triton compiler made on this machine's processor: a kernel source is proven without a board.

`compiler` stops triton-ascend at its linalg IR, `lint` reads that IR, `native` makes machine code of it, `device`
emulates an npu device in torch, and `board` is the driver through which triton-ascend then launches. See README.md.
"""
