"""The registrar: the one program that signs device certificates, with its own key, store and ports."""
