package mien.client.secagg;

/**
 * Who a leaf certificate (DER) names; throws CERTIFICATE unless the registrar's authority vouches for it, COHORT where the
 * registrar has revoked it.
 */
public interface VerifyLeaf {
    /** Returns what a peer's certificate in DER says; throws CERTIFICATE for one that the registrar did not give. */
    VerifiedLeaf verify(byte[] der);
}
