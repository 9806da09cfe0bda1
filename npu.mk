# The off-board tests of the Ascend backend. scripts/test-npu creates a separate environment for them.

.PHONY: test-npu

test-npu:  ## test the Ascend backend without a board: compile with triton-ascend, execute on the CPU
	scripts/test-npu $(ARGS)
