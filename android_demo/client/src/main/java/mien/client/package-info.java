/** A device of Mien's on the JVM: joins, trains, adds up and verifies. Nothing here is Android's. */
package mien.client;
