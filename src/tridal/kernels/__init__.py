"""Triton code only: the schedules, the exchange between programs, and one file of maths per op."""
