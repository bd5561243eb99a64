package mien.client.wire;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;

/** Small things with bytes: hex, SHA-256, joining, little-endian floats. */
public final class Bytes {
    private static final char[] DIGITS = "0123456789abcdef".toCharArray();

    private Bytes() {}

    /** Returns bytes in lower-case hex. */
    public static String hex(byte[] data) {
        StringBuilder text = new StringBuilder(2 * data.length);
        for (byte each : data) {
            text.append(DIGITS[each >> 4 & 15]).append(DIGITS[each & 15]);
        }
        return text.toString();
    }

    /** Returns the bytes that lower-case or upper-case hex stands for; throws IllegalArgumentException for others. */
    public static byte[] unhex(String text) {
        if (text.length() % 2 != 0) {
            throw new IllegalArgumentException("hex has two digits a byte");
        }
        byte[] data = new byte[text.length() / 2];
        for (int i = 0; i < data.length; i++) {
            int high = Character.digit(text.charAt(2 * i), 16);
            int low = Character.digit(text.charAt(2 * i + 1), 16);
            if (high < 0 || low < 0) {
                throw new IllegalArgumentException("this is not hex");
            }
            data[i] = (byte) (high << 4 | low);
        }
        return data;
    }

    /** Returns whether a text is a SHA-256 in lower-case hex. */
    public static boolean isSha256(String text) {
        return text.matches("[0-9a-f]{64}");
    }

    /** Returns a fresh SHA-256. */
    public static MessageDigest sha256() {
        try {
            return MessageDigest.getInstance("SHA-256");
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException("every Java has SHA-256", error);
        }
    }

    /** Returns the hash of what a buffer holds, whose position stays. */
    public static byte[] sha256(ByteBuffer data) {
        MessageDigest digest = sha256();
        digest.update(data.duplicate());
        return digest.digest();
    }

    /** Returns the hash of parts end to end. */
    public static byte[] sha256(byte[]... parts) {
        MessageDigest digest = sha256();
        for (byte[] part : parts) {
            digest.update(part);
        }
        return digest.digest();
    }

    /** Returns a text's bytes in UTF-8. */
    public static byte[] utf8(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    /** Returns the text of bytes in UTF-8. */
    public static String text(byte[] data) {
        return new String(data, StandardCharsets.UTF_8);
    }

    /** Returns parts end to end. */
    public static byte[] concat(byte[]... parts) {
        int length = 0;
        for (byte[] part : parts) {
            length += part.length;
        }
        byte[] joined = new byte[length];
        int at = 0;
        for (byte[] part : parts) {
            System.arraycopy(part, 0, joined, at, part.length);
            at += part.length;
        }
        return joined;
    }

    /** Returns the order of two byte strings as unsigned bytes, first to last. */
    public static int compare(byte[] a, byte[] b) {
        for (int i = 0; i < Math.min(a.length, b.length); i++) {
            int order = Integer.compare(a[i] & 0xff, b[i] & 0xff);
            if (order != 0) {
                return order;
            }
        }
        return Integer.compare(a.length, b.length);
    }

    /** Returns a whole number in so many bytes, the highest first. */
    public static byte[] bigEndian(long value, int size) {
        byte[] data = new byte[size];
        for (int i = size - 1; i >= 0; i--) {
            data[i] = (byte) value;
            value >>>= 8;
        }
        return data;
    }

    /** Returns numbers as float32, the lowest byte of each first. */
    public static byte[] littleEndian(float[] values) {
        ByteBuffer buffer = ByteBuffer.allocate(4 * values.length).order(ByteOrder.LITTLE_ENDIAN);
        buffer.asFloatBuffer().put(values);
        return buffer.array();
    }

    /** Returns the numbers of such bytes. */
    public static float[] floats(byte[] littleEndian) {
        float[] values = new float[littleEndian.length / 4];
        ByteBuffer.wrap(littleEndian).order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer().get(values);
        return values;
    }

    /** Returns whether no value is NaN or infinite. */
    public static boolean isFinite(float[] values) {
        for (float value : values) {
            if (Float.isNaN(value) || Float.isInfinite(value)) {
                return false;
            }
        }
        return true;
    }
}
