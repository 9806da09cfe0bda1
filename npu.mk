# The Ascend path, off the board: scripts/test-npu brings an environment of its own.

.PHONY: test-npu

test-npu:  ## compile with triton-ascend, execute what came out, emulate an NPU: the Ascend path without a board
	scripts/test-npu $(ARGS)
