"""What depends on parts of torch: its private functions, its overrides, its compiler and its DTensors."""
