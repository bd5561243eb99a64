package mien.client.join;

import java.util.Locale;
import mien.client.ErrorCode;
import mien.client.MienException;

/** A server's host and port. */
public final class Address {
    private static final String FORM = "(\\[[0-9a-fA-F:]+\\]|[A-Za-z0-9.-]+):[0-9]{1,5}";
    private static final String NUMBERS = "[0-9.]+|.*:.*";
    /** The longest name that DNS has, and a port. */
    private static final int MOST = 253 + 6;

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

    /**
     * Returns the address that a server names, or null where a device that knows the server by this one may not be sent
     * there for the same certificate. It may to another port of this host, and to a host whose name lies below its own:
     * whoever answers for those answers for this one as well.
     */
    public Address leadingTo(String hint) {
        if (hint.length() > MOST || !hint.matches(FORM)) {
            return null;
        }
        Address other;
        try {
            other = new Address(hint);
        } catch (MienException error) {
            return null;
        }
        String known = host.toLowerCase(Locale.ROOT);
        String named = other.host.toLowerCase(Locale.ROOT);
        boolean isBelow = named.endsWith("." + known) && !named.startsWith(".") && !named.contains("..");
        return named.equals(known) || (isBelow && !known.matches(NUMBERS)) ? other : null;
    }

    /** Returns what TLS and HTTP call this host and port. */
    String authority() {
        return (host.contains(":") ? "[" + host + "]" : host) + ":" + port;
    }

    @Override
    public String toString() {
        return host + ":" + port;
    }
}
