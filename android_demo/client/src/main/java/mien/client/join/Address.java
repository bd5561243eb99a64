package mien.client.join;

import mien.client.ErrorCode;
import mien.client.MienException;

/** A server's host and port. */
public final class Address {
    final String host;
    final int port;

    /** Reads {@code host:port}; throws CONFIG for anything else. */
    public Address(String address) {
        int at = address.lastIndexOf(':');
        int parsed = 0;
        try {
            parsed = Integer.parseInt(address.substring(at + 1));
        } catch (NumberFormatException error) {
            parsed = -1;
        }
        if (at < 1 || parsed < 1 || parsed > 65535) {
            throw new MienException(ErrorCode.CONFIG, "a server's address is host:port; ask the operator for another invite");
        }
        host = address.substring(0, at).replaceAll("[\\[\\]]", "");
        port = parsed;
    }

    @Override
    public String toString() {
        return host + ":" + port;
    }
}
