"""The integration with PyTorch: functions, modules, registered ops, autograd, torch.compile, DTensor, override."""
