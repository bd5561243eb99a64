package mien.client.secagg;

/** The only source of chance: unpredictable bytes; known ones in tests against vectors. */
public interface RandomBytes {
    /** Returns so many fresh bytes. */
    byte[] take(int size);
}
