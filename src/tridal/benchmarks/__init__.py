"""Benchmarks behind `tridal bench`: workloads, providers, timing, result files, tables and pictures.

This package contains no device names. Every rate is compared with the rate of `copy_`, measured on the same shape in
the same run.
"""
