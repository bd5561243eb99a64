package mien.client.secagg;

import mien.client.ErrorCode;
import mien.client.MienException;

/** Shamir's secret sharing over GF(2^8), modulus 0x11b, byte by byte. A device only ever splits. */
final class Shamir {
    private static final byte[] EXP = new byte[255];
    private static final int[] LOG = new int[256];

    static {
        int value = 1;
        for (int power = 0; power < 255; power++) {
            EXP[power] = (byte) value;
            LOG[value] = power;
            value ^= value << 1;
            value ^= (value & 0x100) != 0 ? 0x11b : 0;
        }
    }

    private Shamir() {}

    static int times(int a, int b) {
        return a == 0 || b == 0 ? 0 : EXP[(LOG[a] + LOG[b]) % 255] & 0xff;
    }

    /** Returns 1 / a; a is not 0. */
    static int inverse(int a) {
        return EXP[(255 - LOG[a]) % 255] & 0xff;
    }

    /** Returns the shares of a secret at x = 1 ... numShares; coefficients are drawn at once, those of x first. */
    static byte[][] split(byte[] secret, int threshold, int numShares, RandomBytes random) {
        if (threshold < 1 || threshold > numShares || numShares > 255) {
            throw new MienException(
                    ErrorCode.CONFIG, threshold + " of " + numShares + " shares is not possible; 1 <= t <= k <= 255");
        }
        byte[] drawn = random.take((threshold - 1) * secret.length);
        byte[][] shares = new byte[numShares][secret.length];
        for (int x = 1; x <= numShares; x++) {
            for (int i = 0; i < secret.length; i++) {
                int value = 0;
                for (int row = threshold - 2; row >= 0; row--) {
                    value = times(x, value ^ drawn[row * secret.length + i] & 0xff);
                }
                shares[x - 1][i] = (byte) (value ^ secret[i]);
            }
        }
        return shares;
    }
}
