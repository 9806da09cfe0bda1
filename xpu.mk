# The tests of the Intel backend, without a GPU. scripts/test-xpu creates a separate environment for them.

.PHONY: test-xpu

test-xpu:  ## test the Intel backend without a GPU: compile with triton-xpu, assemble with ocloc, execute on the CPU
	scripts/test-xpu $(ARGS)
