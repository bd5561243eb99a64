"""Systems that need all faces in one place: what federated methods are compared with, and never run on phones."""
