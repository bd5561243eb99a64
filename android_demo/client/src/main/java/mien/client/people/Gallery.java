package mien.client.people;

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.security.SecureRandom;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.function.Function;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.store.Records;
import mien.client.store.Vault;
import mien.client.train.Tensor;
import mien.client.train.TensorRecords;
import mien.client.wire.Bytes;

/**
 * The people enrolled on this device: aligned crops, templates of one model, consent to training, and what training
 * keeps of each for itself; every record sealed, nothing of it in clear anywhere. A person whose record is damaged is
 * still listed, by number, takes part in nothing, and can withdraw and be removed; templates that are damaged are made
 * again by the next update.
 *
 * <pre>
 * person-N   name, consent, crops           state-N-TASK   what training keeps of a person (0: of several) for a task
 * withdrawn-N   empty: consent that was withdrawn while there was no room to write person-N
 * templates  of everybody, and of which model: one record, so that another model comes into use at once or not at all
 * personal   what the model became for the people here; it goes before any change of people, pictures, consent or model
 * </pre>
 */
public final class Gallery {
    private static final String PERSON = "person-";
    private static final String STATE = "state-";
    private static final String WITHDRAWN = "withdrawn-";
    private static final String TEMPLATES = "templates";
    private static final String PERSONAL = "personal";
    /** In the place of a person's number: what is of several together. */
    private static final int TOGETHER = 0;
    private static final int FORM = 2;
    private static final int PERSON_FORM = 3;
    private static final int TRIES = 5;

    /** One enrolled person. */
    public static final class Person {
        public final int id;
        public final String name;
        public final long enrolledMs;
        /** When they agreed that their pictures train, 0 where they do not. */
        public final long agreedMs;
        /** Whether their pictures may train. */
        public final boolean trains;

        /** Of this agreement alone, not of one that they gave before or after; 0 where they do not agree. */
        public final long mark;

        /** Aligned crops by sitting: each enrolment of this person made one template of its own; none if damaged. */
        final byte[][][] sittings;
        /**
         * Whether their record does not open: then nothing is known of them but the number, they neither train nor are
         * recognised, and all that helps is to remove them and enrol them again.
         */
        public final boolean isDamaged;

        Person(int id, String name, long enrolledMs, long agreedMs, long mark, byte[][]... sittings) {
            this.id = id;
            this.name = name;
            this.enrolledMs = enrolledMs;
            this.agreedMs = agreedMs;
            this.mark = mark;
            this.sittings = sittings;
            trains = agreedMs > 0;
            isDamaged = sittings.length == 0;
        }

        /** Returns all crops, the oldest first. */
        public byte[][] crops() {
            List<byte[]> all = new ArrayList<>();
            for (byte[][] sitting : sittings) {
                all.addAll(Arrays.asList(sitting));
            }
            return all.toArray(new byte[0][]);
        }

        /** Returns how many crops are kept of them. */
        public int numImages() {
            return crops().length;
        }

        @Override
        public String toString() {
            return "Person(" + id + ", " + numImages() + " images)";
        }
    }

    /** All templates, and the model that made them. */
    static final class Templates {
        /** Null before the first model. */
        final String modelId;

        final Map<Integer, float[][]> of;

        Templates(String modelId, Map<Integer, float[][]> of) {
            this.modelId = modelId;
            this.of = of;
        }
    }

    private final Vault vault;
    private final Numbers numbers;
    private final SecureRandom random = new SecureRandom();
    private long version;

    /** Keeps people in a vault, under numbers that are never given again. */
    public Gallery(Vault vault, Numbers numbers) {
        this.vault = vault;
        this.numbers = numbers;
    }

    /**
     * Stores a new person with the template of their crops, and returns the number that names them. Throws
     * ALREADY_EXISTS for a name that is taken, MODEL_MISMATCH for a template of another model than the gallery's.
     */
    public synchronized int enrol(
            String name, byte[][] crops, float[] template, String modelId, long nowMs, boolean agrees) {
        check(crops, modelId);
        int highest = 0;
        for (Person person : people()) {
            if (!person.isDamaged && person.name.equals(name)) {
                throw new MienException(
                        ErrorCode.ALREADY_EXISTS, "somebody of that name is enrolled; choose another name, or remove them");
            }
            highest = Math.max(highest, person.id);
        }
        int id = numbers.next(highest);
        // Templates first: without a person they say nothing, and a person without them would be known by nothing.
        putTemplates(modelId, id, new float[][] {template});
        put(new Person(id, name, nowMs, agrees ? nowMs : 0, agrees ? newMark() : 0, crops));
        return id;
    }

    /** Adds one more sitting of a person (another day, with glasses) with a template of its own. */
    public synchronized void add(int id, byte[][] crops, float[] template, String modelId) {
        check(crops, modelId);
        Person person = readable(id);
        byte[][][] sittings = Arrays.copyOf(person.sittings, person.sittings.length + 1);
        sittings[person.sittings.length] = crops;
        float[][] before = templates().of.get(id);
        float[][] after = Arrays.copyOf(before == null ? new float[0][] : before, sittings.length);
        after[sittings.length - 1] = template;
        putTemplates(modelId, id, after);
        put(new Person(id, person.name, person.enrolledMs, person.agreedMs, person.mark, sittings));
    }

    private long newMark() {
        long mark = random.nextLong();
        return mark == 0 ? 1 : mark;
    }

    private void check(byte[][] crops, String modelId) {
        if (crops.length == 0) {
            throw new MienException(ErrorCode.CONFIG, "a person needs pictures; enrol again");
        }
        String present = modelId();
        if (present != null && !present.equals(modelId)) {
            throw new MienException(
                    ErrorCode.MODEL_MISMATCH, "the gallery's templates are of another model by now; enrol again");
        }
    }

    /** Returns everybody, also whose record is damaged. */
    public synchronized List<Person> people() {
        List<Person> people = new ArrayList<>();
        for (int id : ids()) {
            people.add(find(id));
        }
        return people;
    }

    /** Returns a person, also whose record is damaged; throws NOT_ENROLLED. */
    public synchronized Person person(int id) {
        Person person = find(id);
        if (person == null) {
            throw new MienException(ErrorCode.NOT_ENROLLED, "that person is not enrolled; enrol them first");
        }
        return person;
    }

    /** Returns a person; throws NOT_ENROLLED, and CORRUPT_DATA where their record is damaged. */
    synchronized Person readable(int id) {
        Person person = person(id);
        if (person.isDamaged) {
            throw new MienException(
                    ErrorCode.CORRUPT_DATA, "what is kept of that person is damaged; remove them, and enrol them again");
        }
        return person;
    }

    private List<Integer> ids() {
        List<Integer> ids = new ArrayList<>();
        for (String name : vault.names(PERSON)) {
            String number = name.substring(PERSON.length());
            if (number.matches("[0-9]{6,9}")) {
                ids.add(Integer.parseInt(number));
            }
        }
        return ids;
    }

    /** Returns a person, also whose record is damaged, null for nobody. */
    private Person find(int id) {
        try {
            byte[] record = vault.get(record(id));
            Person person = record == null ? null : Records.parse(record, Gallery::readPerson);
            boolean withdrew = person != null && person.trains && vault.has(withdrawn(id));
            return withdrew ? new Person(id, person.name, person.enrolledMs, 0, 0, person.sittings) : person;
        } catch (MienException error) {
            if (!error.code().isGone()) {
                throw error; // the key may be out of reach for now
            }
            return new Person(id, "", 0, 0, 0);
        }
    }

    /** Returns whether somebody agrees to training. */
    synchronized boolean somebodyTrains() {
        for (Person person : people()) {
            if (person.trains) {
                return true;
            }
        }
        return false;
    }

    /** Returns whether a person agrees to training, also where that cannot be read. */
    synchronized boolean mayTrain(int id) {
        try {
            Person person = find(id);
            return person != null && (person.trains || person.isDamaged);
        } catch (MienException error) {
            return true;
        }
    }

    /** Returns whether a person is here and agrees to training. */
    public synchronized boolean stillTrains(int id) {
        Person person = find(id);
        return person != null && person.trains;
    }

    /**
     * Returns whether everybody still agrees as they did when their marks were taken: not where somebody withdrew and
     * agreed again, was removed, or cannot be read any more.
     */
    public synchronized boolean stillAgree(Map<Integer, Long> marks) {
        for (Map.Entry<Integer, Long> each : marks.entrySet()) {
            Person person = find(each.getKey());
            if (each.getValue() == 0 || person == null || person.mark != each.getValue()) {
                return false;
            }
        }
        return true;
    }

    /**
     * Gives or withdraws consent to training; what training kept of them goes with it. Withdrawing takes no room, and no
     * key: where that is out of reach it is noted at once, and thrown that what training kept is still to be removed.
     */
    public synchronized void setConsent(int id, boolean trains, long nowMs) {
        if (trains) {
            agree(readable(id), nowMs);
            return;
        }
        forgetPersonal();
        try {
            withdraw(person(id));
        } catch (MienException error) {
            if (error.code().isOutOfReach() && vault.tryMark(withdrawn(id))) {
                version++;
            }
            throw error;
        }
        forgetStates(id);
    }

    private void agree(Person person, long nowMs) {
        if (!person.trains) {
            put(new Person(person.id, person.name, person.enrolledMs, nowMs, newMark(), person.sittings));
        }
    }

    private void withdraw(Person person) {
        if (person.isDamaged) {
            vault.tryMark(withdrawn(person.id)); // should the record open again, it trains no more
        } else if (person.trains) {
            try {
                put(new Person(person.id, person.name, person.enrolledMs, 0, 0, person.sittings));
            } catch (MienException full) {
                if (!vault.tryMark(withdrawn(person.id))) {
                    throw full;
                }
                version++;
            }
        }
    }

    /** Returns the model that all templates are of, null before the first one. */
    public synchronized String modelId() {
        return templates().modelId;
    }

    /** Returns everybody's templates; throws MODEL_MISMATCH where another model made them. */
    synchronized Map<Integer, float[][]> templates(String modelId) {
        Templates templates = templates();
        if (!modelId.equals(templates.modelId)) {
            throw new MienException(
                    ErrorCode.MODEL_MISMATCH, "the gallery's templates are of another model; update before verifying");
        }
        return templates.of;
    }

    /**
     * Replaces everybody's templates by those of another model, in one switch: until then the old ones serve, and after a
     * crash it is the old ones or the new ones. {@code template} maps the crops of one sitting.
     */
    public void reembed(String modelId, Function<byte[][], float[]> template) {
        for (int tries = 0; tries < TRIES; tries++) {
            long seen;
            List<Person> people;
            synchronized (this) {
                seen = version;
                people = people();
            }
            Map<Integer, float[][]> made = new LinkedHashMap<>();
            for (Person person : people) {
                if (person.isDamaged) {
                    continue;
                }
                float[][] rows = new float[person.sittings.length][];
                for (int i = 0; i < rows.length; i++) {
                    rows[i] = template.apply(person.sittings[i]);
                }
                made.put(person.id, rows);
            }
            synchronized (this) {
                if (seen == version) {
                    put(new Templates(modelId, made));
                    return;
                }
            }
        }
        throw new MienException(
                ErrorCode.UNREACHABLE, "people were enrolled or removed all the while; the old model stays, update again");
    }

    /** Removes a person with all that was kept of them; one whose removal was cut short is still listed. */
    public synchronized void remove(int id) {
        forgetPersonal();
        forgetStates(id);
        boolean forgotten = forgetTemplates(id);
        vault.remove(record(id));
        vault.remove(withdrawn(id));
        version++;
        // Without the record there is more room; else everybody's go, and the next update makes the others' again.
        if (!forgotten && !forgetTemplates(id)) {
            vault.remove(TEMPLATES);
        }
    }

    /** Returns whether a person's templates are gone: not where there is no room. */
    private boolean forgetTemplates(int id) {
        try {
            Templates templates = templates();
            templates.of.remove(id);
            if (templates.modelId == null) {
                vault.remove(TEMPLATES); // what is damaged serves nobody
            } else {
                put(templates);
            }
            return true;
        } catch (MienException error) {
            if (error.code().isOutOfReach()) {
                throw error;
            }
            return false;
        }
    }

    /** Returns whether the key of everybody's records is gone for good; throws KEY_STORE and KEY_LOCKED while unknown. */
    public synchronized boolean isLost() {
        return vault.isLost();
    }

    /** Throws KEY_LOST where the key of everybody's records is gone for good, and as {@link #isLost}. */
    public void requireNotLost() {
        if (isLost()) {
            throw new MienException(
                    ErrorCode.KEY_LOST, "the key of everybody's records is gone for good; wipe, and enrol again");
        }
    }

    /** Destroys everything: the key first. */
    public synchronized void wipe() {
        vault.wipe();
        version++;
    }

    /** Returns a number that is another one after every change of people, pictures, consent or model. */
    synchronized long version() {
        return version;
    }

    /** Returns whether there is a personal model, in use or not. */
    public synchronized boolean hasPersonal() {
        return vault.has(PERSONAL);
    }

    /** Returns the personal model on top of a released one, null where there is none, or it is damaged. */
    synchronized PersonalModel personal(String modelId) {
        try {
            byte[] record = vault.get(PERSONAL);
            PersonalModel personal = record == null ? null : PersonalModel.ofBytes(record);
            return personal == null || !personal.modelId.equals(modelId) ? null : personal;
        } catch (MienException error) {
            if (!error.code().isGone()) {
                throw error;
            }
            return null; // the released model serves, and personalising makes another
        }
    }

    /**
     * Keeps the personal model that was made of the gallery in that version, in an earlier one's place. Throws UNREACHABLE
     * where the gallery has changed since: its people or pictures may be others now.
     */
    synchronized void keepPersonal(PersonalModel personal, long madeFrom) {
        if (version != madeFrom || !personal.modelId.equals(modelId())) {
            throw new MienException(ErrorCode.UNREACHABLE, "people changed while it was personalised; personalise again");
        }
        vault.put(PERSONAL, personal.toBytes());
    }

    /** Removes the personal model; returns whether there was one. */
    public synchronized boolean forgetPersonal() {
        boolean wasThere = hasPersonal();
        vault.remove(PERSONAL);
        return wasThere;
    }

    /** Returns what training keeps of people for a task; nothing before the first round that counted. */
    public synchronized TrainingState state(List<Integer> people, String taskId) {
        TrainingState state = new TrainingState();
        for (int person : people) {
            byte[] record = vault.get(stateRecord(person, taskId));
            if (record != null) {
                state.own.put(person, Records.parse(record, TensorRecords::read));
            }
        }
        byte[] record = vault.get(stateRecord(TOGETHER, taskId));
        if (record != null) {
            Records.parse(record, in -> readTogether(in, state));
        }
        return state;
    }

    /** Keeps what a round that counted made, in place of what was there. */
    public synchronized void putState(String taskId, TrainingState state) {
        for (Map.Entry<Integer, Map<String, Tensor>> each : state.own.entrySet()) {
            vault.put(
                    stateRecord(each.getKey(), taskId), Records.bytes(out -> TensorRecords.write(out, each.getValue())));
        }
        if (state.members.isEmpty()) {
            vault.remove(stateRecord(TOGETHER, taskId));
        } else {
            vault.put(stateRecord(TOGETHER, taskId), Records.bytes(out -> writeTogether(out, state)));
        }
    }

    private static void writeTogether(DataOutputStream out, TrainingState state) throws IOException {
        out.writeInt(state.members.size());
        for (int member : state.members) {
            out.writeInt(member);
        }
        TensorRecords.write(out, state.together);
    }

    private static TrainingState readTogether(DataInputStream in, TrainingState into) throws IOException {
        for (int left = Records.count(in); left > 0; left--) {
            into.members.add(in.readInt());
        }
        into.together.putAll(TensorRecords.read(in));
        return into;
    }

    /** Forgets what is a person's own, and what is of several people of whom they are one. */
    private void forgetStates(int person) {
        for (String name : vault.names(STATE + TOGETHER + "-")) {
            if (mayBeOf(person, name)) {
                vault.remove(name);
            }
        }
        for (String name : vault.names(STATE + person + "-")) {
            vault.remove(name);
        }
    }

    private boolean mayBeOf(int person, String together) {
        TrainingState state = new TrainingState();
        try {
            Records.parse(vault.get(together), in -> readTogether(in, state));
            return state.members.contains(person);
        } catch (MienException error) {
            if (!error.code().isGone()) {
                throw error;
            }
            return true; // what is damaged serves nobody
        }
    }

    private static String record(int id) {
        return PERSON + digits(id);
    }

    private static String withdrawn(int id) {
        return WITHDRAWN + digits(id);
    }

    private static String digits(int id) {
        return String.format(Locale.ROOT, "%06d", id);
    }

    private static String stateRecord(int person, String taskId) {
        return STATE + person + "-" + Bytes.hex(Bytes.sha256(Bytes.utf8(taskId))).substring(0, 32);
    }

    // Records as bytes

    private void put(Person person) {
        forgetPersonal();
        vault.put(
                record(person.id),
                Records.bytes(
                        out -> {
                            out.writeByte(PERSON_FORM);
                            out.writeInt(person.id);
                            out.writeUTF(person.name);
                            out.writeLong(person.enrolledMs);
                            out.writeLong(person.agreedMs);
                            out.writeLong(person.mark);
                            out.writeInt(person.sittings.length);
                            for (byte[][] sitting : person.sittings) {
                                out.writeInt(sitting.length);
                                for (byte[] crop : sitting) {
                                    Records.write(out, crop);
                                }
                            }
                        }));
        vault.remove(withdrawn(person.id)); // the record says it now
        version++;
    }

    private static Person readPerson(DataInputStream in) throws IOException {
        byte form = in.readByte();
        Records.require(form == FORM || form == PERSON_FORM);
        int id = in.readInt();
        String name = in.readUTF();
        long enrolledMs = in.readLong();
        long agreedMs = in.readLong();
        long mark = form == FORM ? agreedMs : in.readLong();
        byte[][][] sittings = new byte[Records.count(in)][][];
        for (int i = 0; i < sittings.length; i++) {
            sittings[i] = new byte[Records.count(in)][];
            for (int j = 0; j < sittings[i].length; j++) {
                sittings[i][j] = Records.read(in);
            }
        }
        return new Person(id, name, enrolledMs, agreedMs, mark, sittings);
    }

    private Templates templates() {
        Templates templates = storedTemplates();
        templates.of.keySet().retainAll(ids()); // without those of an enrolment that did not come to its end
        return templates;
    }

    /** Returns what is stored; what is damaged is as if there were none: the next update makes them again. */
    private Templates storedTemplates() {
        Templates none = new Templates(null, new LinkedHashMap<>());
        try {
            byte[] record = vault.get(TEMPLATES);
            return record == null ? none : Records.parse(record, Gallery::readTemplates);
        } catch (MienException error) {
            if (!error.code().isGone()) {
                throw error;
            }
            return none;
        }
    }

    private void putTemplates(String modelId, int id, float[][] rows) {
        Map<Integer, float[][]> all = templates().of;
        all.put(id, rows);
        put(new Templates(modelId, all));
    }

    private void put(Templates templates) {
        forgetPersonal();
        vault.put(
                TEMPLATES,
                Records.bytes(
                        out -> {
                            out.writeByte(FORM);
                            out.writeUTF(templates.modelId);
                            out.writeInt(templates.of.size());
                            for (Map.Entry<Integer, float[][]> each : templates.of.entrySet()) {
                                out.writeInt(each.getKey());
                                out.writeInt(each.getValue().length);
                                for (float[] row : each.getValue()) {
                                    Records.write(out, Bytes.littleEndian(row));
                                }
                            }
                        }));
        version++;
    }

    private static Templates readTemplates(DataInputStream in) throws IOException {
        Records.require(in.readByte() == FORM);
        String modelId = in.readUTF();
        Map<Integer, float[][]> of = new LinkedHashMap<>();
        for (int left = Records.count(in); left > 0; left--) {
            int id = in.readInt();
            float[][] rows = new float[Records.count(in)][];
            for (int i = 0; i < rows.length; i++) {
                rows[i] = Bytes.floats(Records.read(in));
            }
            of.put(id, rows);
        }
        return new Templates(modelId, of);
    }
}
