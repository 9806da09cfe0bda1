"""The path of a call: key, `Call`, autograd node and kernel launches; or the registered op, or torch."""
