"""Measures the operator and the backend against what torch offers: `python -m fmlp_op bench`.

`timing` has the clocks, `peers` what is compared, `suites` the sizes, `peaks` the machine's limits, `report` the
output, `inspect` what a CUDA kernel is made of.
"""
