"""A server's folder: its settings, what lies in it, sealed files, archives and backups."""
