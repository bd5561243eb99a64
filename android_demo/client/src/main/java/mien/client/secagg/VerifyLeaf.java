package mien.client.secagg;

/**
 * Who a leaf certificate (DER) names; throws CERTIFICATE unless the registrar's authority vouches for it, COHORT where the
 * registrar has revoked it.
 */
public interface VerifyLeaf {
    VerifiedLeaf verify(byte[] der);
}
