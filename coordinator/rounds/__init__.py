"""Rounds: `machine`, `plan` and `server_step` are pure; `engine`, `runner` and `closing_io` drive them."""
