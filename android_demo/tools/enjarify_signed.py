"""enjarify with two faults of version 1.0.3 mended: the sign of const-wide/32, and tables of numbers.

The instruction's literal is to be sign-extended to 64 bits (Dalvik bytecode, format 31i); constants between -2^31 and
-2^15 came back wrong, and with them every Ed25519 signature. The tables of instructions for short floats and doubles
list them by other numbers: 2^50 came back as 4. What is not in them is worked out, rightly, so that all but zeros and
what is not finite go.
"""

from enjarify import dalvikformats, main
from enjarify.jvm.constants import lookup

CONST_WIDE_32 = 0x17
_decode = dalvikformats.decode


def decode(shorts, pos, opcode):
    """Return what enjarify's own decoder does, with the sign."""
    end, args = _decode(shorts, pos, opcode)
    if opcode == CONST_WIDE_32:
        args[-1] = dalvikformats.sign(args[-1], 32)
    return end, args


dalvikformats.decode = decode
for _table, _negative, _not_finite in ((lookup.DOUBLES, 1 << 63, 0x7FF << 52), (lookup.FLOATS, 1 << 31, 0xFF << 23)):
    for _bits in [bits for bits in _table if bits not in (0, _negative) and bits & _not_finite != _not_finite]:
        del _table[_bits]

if __name__ == "__main__":
    main.main()
