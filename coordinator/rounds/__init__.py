"""Rounds: the state machine of one attempt (pure), the engine that drives it, spool files and the closing step."""
