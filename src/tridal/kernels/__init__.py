"""Triton code only: the schedules, the exchange between programs, and one file of math per op."""
