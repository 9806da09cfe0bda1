"""The figures of README.md and docs/, made from the results in docs/benchmarks. See make_figures.py."""
