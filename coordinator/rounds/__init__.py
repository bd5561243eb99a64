"""Rounds: pure are `machine` (one attempt), `plan` and `server_step` (its end); `engine`, `runner`, `closing_io` drive them."""
