package mien.client.secagg;

/** Message 5, and the packed vector that is streamed beside it. */
public final class MaskedInput {
    public final byte[] message;
    public final byte[] payload;

    MaskedInput(byte[] message, byte[] payload) {
        this.message = message;
        this.payload = payload;
    }
}
