package mien.client.join;

import java.security.KeyPair;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

/** A key to join with, and what the phone's hardware attests of it. */
public final class AttestedKey {
    public final KeyPair pair;
    /** Certificates (DER) from the key's own to the root's; empty where no hardware attests it. */
    public final List<byte[]> chain;

    /** Holds a key with the chain of certificates in which hardware attests it, empty where none does. */
    public AttestedKey(KeyPair pair, List<byte[]> chain) {
        this.pair = pair;
        this.chain = Collections.unmodifiableList(new ArrayList<>(chain));
    }

    @Override
    public String toString() {
        return "AttestedKey(***, " + chain.size() + " certificates)";
    }
}
