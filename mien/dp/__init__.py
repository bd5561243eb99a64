"""Differential privacy: noise in whole steps, what it costs, and the account of what was spent.

`mechanisms` draws the noise, `clipping` bounds what one device can add, `accountant` turns sums into epsilon and delta,
`ledger` keeps the account and refuses before it is overdrawn, `mien.secagg.noise` applies them to sums.
"""
