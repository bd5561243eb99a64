/**
 * A device's side of private sums, protocol MSA2: state machines on bytes, with no network, files, clock or chance of
 * their own. {@code docs/secure-aggregation.md} is the description; {@code tests/golden/secagg} the proof.
 */
package mien.client.secagg;
