"""The people of a phone: enrolling, the gallery, verifying, personal models, protection and backups."""
