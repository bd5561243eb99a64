"""Migrations of the dashboard's own database."""
