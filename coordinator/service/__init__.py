"""The coordinator's gRPC services: who may call what, and messages to and from the engine."""
