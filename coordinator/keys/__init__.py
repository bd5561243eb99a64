"""Keys and certificates: the authorities, what they sign, and TLS as both servers speak it."""
