"""The path of a call: guard, prepared call, kernel launches, autograd node; or registered op, or torch."""
