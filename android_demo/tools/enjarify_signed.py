"""enjarify with the sign of const-wide/32: version 1.0.3 reads its 32 bits as a number that is never negative.

The instruction's literal is to be sign-extended to 64 bits (Dalvik bytecode, format 31i); constants between -2^31 and
-2^15 came back wrong, and with them every Ed25519 signature.
"""

from enjarify import dalvikformats, main

CONST_WIDE_32 = 0x17
_decode = dalvikformats.decode


def decode(shorts, pos, opcode):
    """Return what enjarify's own decoder does, with the sign."""
    end, args = _decode(shorts, pos, opcode)
    if opcode == CONST_WIDE_32:
        args[-1] = dalvikformats.sign(args[-1], 32)
    return end, args


dalvikformats.decode = decode

if __name__ == "__main__":
    main.main()
