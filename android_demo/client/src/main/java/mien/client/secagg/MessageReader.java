package mien.client.secagg;

import java.util.Arrays;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.wire.Bytes;

/** Takes a message of the protocol apart from the front: version and number first, nothing left over at the end. */
final class MessageReader {
    static final int INVITE = 0;
    static final int ADVERTISE = 1;
    static final int ROSTER = 2;
    static final int SHARES = 3;
    static final int DELIVERED = 4;
    static final int MASKED = 5;
    static final int SURVIVORS = 6;
    static final int CONSISTENCY = 7;
    static final int PROOF = 8;
    static final int UNMASK = 9;

    private final byte[] data;
    private int at = 2;

    MessageReader(byte[] data, int kind) {
        this.data = data;
        if (data.length < 1 || data[0] != RoundConfig.VERSION) {
            throw new MienException(
                    ErrorCode.VERSION, "a message of another version arrived; upgrade the older program");
        }
        if (data.length < 2 || data[1] != kind) {
            throw damaged("another message was expected");
        }
    }

    /** Returns the first bytes of a message of that number. */
    static byte[] head(int kind) {
        return new byte[] {RoundConfig.VERSION, (byte) kind};
    }

    byte[] take(int size) {
        if (size > left()) {
            throw damaged("it is cut off");
        }
        at += size;
        return Arrays.copyOfRange(data, at - size, at);
    }

    int number(int size, int atMost) {
        int value = 0;
        for (byte each : take(size)) {
            value = value << 8 | each & 0xff;
        }
        if (value > atMost) {
            throw damaged("it says " + value + ", at most " + atMost + " is possible");
        }
        return value;
    }

    int left() {
        return data.length - at;
    }

    void end() {
        if (left() != 0) {
            throw damaged("it is too long");
        }
    }

    private static MienException damaged(String why) {
        return new MienException(
                ErrorCode.CORRUPT_DATA, "a message of the private sum is damaged (" + why + "); check in again");
    }

    /** Returns a message: its head and its parts. */
    static byte[] message(int kind, byte[]... parts) {
        return Bytes.concat(head(kind), Bytes.concat(parts));
    }
}
