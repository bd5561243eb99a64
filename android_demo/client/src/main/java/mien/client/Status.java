package mien.client;

import java.util.List;
import mien.client.join.Identity;
import mien.client.people.Gallery;
import mien.client.rounds.Journal;

/** Where a device stands, without asking the network. */
public final class Status {
    /** Whether this device belongs to a fleet; the next three say which, empty and 0 where it does not. */
    public final boolean joined;

    /** Whether the key of its certificate is gone: then it belongs to none until another invite of that fleet lets it in. */
    public final boolean lostKey;
    /** The id in the fleet that it belongs to, or belonged to; empty where there is none. */
    public final String deviceId;

    public final String population;
    public final String coordinator;
    public final long certificateEndsMs;

    /** The model in use, empty before the first update. */
    public final String modelId;

    public final int numPeople;
    /** How many of them have to be removed and enrolled again, because what is kept of them is damaged. */
    public final int numDamaged;
    /** Whether the key that seals all of them is gone for good: then nothing of them opens ever again. */
    public final boolean lostPeople;
    /** How many of them agree that their pictures train. */
    public final int numAgreed;
    /** A round that this device trained for and that has not ended, as text; empty where there is none. */
    public final String pendingRound;
    /** Private sums that this device is or may be in: they cannot be taken back. */
    public final int numPrivateSums;
    /** Those of the last 24 hours to which phones added no noise of their own: as many as the owner lets it into. */
    public final int numSumsToday;
    /** Whether rounds are looked up in the public log; not until the registrar has named its key, at the next renewal. */
    public final boolean looksUpRounds;
    /** What lies about that log the coordinator told, each in a sentence; the evidence is there to be handed on. */
    public final List<String> lies;
    /** Whether this device asks to be left out of rounds, and whether the coordinator still has to be told so. */
    public final boolean staysOut;

    public final boolean stillToTell;
    /** Bytes of messages to and from the coordinator since the gallery was last wiped. */
    public final long sentBytes;

    public final long receivedBytes;
    /** What happened, the newest first: rounds, and what was left out and why. */
    public final List<Journal.Entry> journal;

    Status(Device device) {
        Identity identity = device.known();
        joined = identity != null;
        lostKey = !joined && device.hasJoined();
        deviceId = device.deviceId();
        population = joined ? identity.population : "";
        coordinator = joined ? identity.coordinatorAddress.toString() : "";
        certificateEndsMs = joined ? identity.certificate.getNotAfter().getTime() : 0;
        String model = device.gallery.modelId();
        modelId = model == null ? "" : model;
        int damaged = 0;
        int agreed = 0;
        List<Gallery.Person> people = device.people();
        for (Gallery.Person person : people) {
            damaged += person.isDamaged ? 1 : 0;
            agreed += person.trains ? 1 : 0;
        }
        numPeople = people.size();
        numDamaged = damaged;
        lostPeople = device.gallery.isLost();
        numAgreed = agreed;
        pendingRound = device.pendingRound();
        numPrivateSums = device.attempts.numSums();
        numSumsToday = device.attempts.numSumsToday(joined ? identity.population : null, device.now() / 1000);
        looksUpRounds = joined && !identity.witnessKey.isEmpty();
        lies = device.logFiles.lies();
        staysOut = device.stayingOut.wanted();
        stillToTell = joined && device.stayingOut.isToTell();
        sentBytes = device.journal.sentBytes();
        receivedBytes = device.journal.receivedBytes();
        journal = device.journal.entries();
    }

    /** Returns the last round that this device took part in to its end, null where none is noted. */
    public Journal.Entry lastRound() {
        for (Journal.Entry entry : journal) {
            if (!entry.round.isEmpty()) {
                return entry;
            }
        }
        return null;
    }
}
