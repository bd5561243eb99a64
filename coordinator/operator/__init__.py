"""Clients for operators: calls to the servers, and their answers in words."""
