"""Benchmarks behind `tridal bench`. Every rate is compared with that of `copy_` on the same shape in the same run."""
