/** A phone without a screen, for tests against the real servers. */
package mien.e2e;
