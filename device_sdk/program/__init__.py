"""The program `mien-device`: its commands, its doctor, what it tells the owner, and the live view."""
