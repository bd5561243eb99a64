"""Android's key attestation: proof that a phone's key was made and stays in its hardware, checked without a network.

`der` reads the encoding, `description` what the hardware says of a key, `chain` who vouches for it, `policy` whether
that is enough to join.
"""
