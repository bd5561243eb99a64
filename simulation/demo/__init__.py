"""The demo: a registrar, a coordinator and phones as real processes over mutual TLS, from invite to verification."""
