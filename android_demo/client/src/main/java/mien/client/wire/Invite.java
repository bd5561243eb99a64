package mien.client.wire;

import java.io.UnsupportedEncodingException;
import java.math.BigInteger;
import java.net.URLDecoder;
import java.util.HashMap;
import java.util.Map;
import java.util.regex.Pattern;
import mien.client.ErrorCode;
import mien.client.MienException;
import org.bouncycastle.crypto.generators.SCrypt;

/** Where to join, which two authorities to trust (SHA-256 of their certificates), and a one-time token. */
public final class Invite {
    private static final String BEGIN = "mien://join?";
    private static final Pattern ADDRESS = Pattern.compile("(\\[[0-9a-fA-F:]+\\]|[A-Za-z0-9.-]+):[0-9]{1,5}");
    private static final Pattern HEX = Pattern.compile("[0-9a-f]{64}");
    private static final Pattern TOKEN = Pattern.compile("[A-Za-z0-9_-]{22,64}");
    private static final int MAX_FIELDS = 8;
    private static final String ATTESTATION = "mien/v1/key-attestation";
    private static final String CODE_LABEL = "mien/v1/invite-code";
    private static final BigInteger CODES = BigInteger.TEN.pow(16);
    private static final int CODE_BYTES = 16;
    /** 32 MiB and some tenths of a second a try: what makes 16 digits enough. */
    private static final int CODE_N = 1 << 15;

    private static final int CODE_R = 8;
    private static final int CODE_P = 1;

    public final String registrarAddress;
    public final String registrarCaSha256;
    public final String coordinatorCaSha256;
    private final String token;

    private Invite(String registrarAddress, String registrarCaSha256, String coordinatorCaSha256, String token) {
        this.registrarAddress = registrarAddress;
        this.registrarCaSha256 = registrarCaSha256;
        this.coordinatorCaSha256 = coordinatorCaSha256;
        this.token = token;
    }

    /** Returns the secret that may be used once. */
    public String token() {
        return token;
    }

    /** Returns the name of this invite, from which the token cannot be told. */
    public String sha256() {
        return Bytes.hex(Bytes.sha256(Bytes.utf8(token)));
    }

    /**
     * Returns the 16 digits by which people compare both fingerprints, as {@code 0123 4567 8901 2345}: scrypt over the registrar's
     * and then the coordinator's (64 bytes), of which 16 bytes are taken as a number modulo 10^16. Takes some tenths of a second and
     * 32 MiB, and so does each try of somebody who looks for other authorities with the same code. Not for a main thread.
     */
    public String code() {
        byte[] both = Bytes.concat(Bytes.unhex(registrarCaSha256), Bytes.unhex(coordinatorCaSha256));
        byte[] drawn = SCrypt.generate(both, Bytes.utf8(CODE_LABEL), CODE_N, CODE_R, CODE_P, CODE_BYTES);
        String digits = new BigInteger(1, drawn).mod(CODES).add(CODES).toString(); // a 1 before it keeps the zeros
        return String.join(
                " ", digits.substring(1, 5), digits.substring(5, 9), digits.substring(9, 13), digits.substring(13));
    }

    /**
     * Returns the 32 bytes that a key is made with which hardware attests for this invite, and for no other: SHA-256 of a
     * label, the registrar's fingerprint and the token, each behind its length (one byte).
     */
    public byte[] attestationChallenge() {
        byte[] whole = new byte[0];
        for (String part : new String[] {ATTESTATION, registrarCaSha256, token}) {
            whole = Bytes.concat(whole, Bytes.bigEndian(part.length(), 1), Bytes.utf8(part));
        }
        return Bytes.sha256(whole);
    }

    /** Returns the invite in a URL; throws INVITE saying which piece is wrong, never showing the token. */
    public static Invite parse(String url) {
        String line = url.trim();
        if (!line.startsWith(BEGIN)) {
            throw new MienException(
                    ErrorCode.INVITE, "this is not an invite: it must begin with mien://join?; copy the whole line");
        }
        int end = line.indexOf('#');
        Map<String, String> query = query(line.substring(BEGIN.length(), end < 0 ? line.length() : end));
        return new Invite(
                piece(query, "r", ADDRESS), piece(query, "rf", HEX), piece(query, "cf", HEX), piece(query, "t", TOKEN));
    }

    private static Map<String, String> query(String text) {
        Map<String, String> found = new HashMap<>();
        String[] pairs = text.split("&", -1);
        if (pairs.length > MAX_FIELDS) {
            throw damaged("");
        }
        for (String pair : pairs) {
            int at = pair.indexOf('=');
            if (at < 0 || found.put(decoded(pair.substring(0, at)), decoded(pair.substring(at + 1))) != null) {
                throw damaged("");
            }
        }
        return found;
    }

    private static String decoded(String text) {
        try {
            return URLDecoder.decode(text, "UTF-8");
        } catch (UnsupportedEncodingException | IllegalArgumentException error) {
            throw damaged("");
        }
    }

    private static String piece(Map<String, String> query, String name, Pattern pattern) {
        String value = query.get(name);
        if (value == null || !pattern.matcher(value).matches()) {
            throw damaged(" (piece '" + name + "')");
        }
        return value;
    }

    private static MienException damaged(String piece) {
        return new MienException(
                ErrorCode.INVITE, "the invite is cut off or damaged" + piece + "; copy the whole line");
    }

    @Override
    public String toString() {
        return "Invite(" + registrarAddress + ", ***)";
    }
}
