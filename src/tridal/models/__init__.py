"""Models of torch.nn.Module: `tridal.kernelize` replaces modules and losses that tridal computes."""
