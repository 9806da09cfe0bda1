"""Benchmarks of `tridal bench`. Each rate is compared with the rate of `copy_` on the same shape in the same run."""
