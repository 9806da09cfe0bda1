"""Benchmarks against other softmaxes: what is measured, by whom, how, and how it is written down.

`tridal bench` is the way in. This package knows no device by name: what a rate means is told by `copy_` on the same
shape, measured in the same run.
"""
