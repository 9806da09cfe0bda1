# The tests of the Ascend backend, without an NPU. scripts/test-npu creates a separate environment for them.

.PHONY: test-npu

test-npu:  ## test the Ascend backend without an NPU: compile with triton-ascend, execute on the CPU
	scripts/test-npu $(ARGS)
