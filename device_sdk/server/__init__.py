"""Speaking with the registrar and the coordinator: joining, identity, certificates, calls and retries."""
