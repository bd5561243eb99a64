package mien.client.fl;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.store.Vault;
import mien.client.train.Tensor;
import mien.client.wire.Bytes;

/**
 * The people enrolled on this device: aligned crops, templates of one model, consent to training, and what training
 * keeps of each for itself; every record sealed, nothing of it in clear anywhere.
 */
public final class Gallery {
    private static final String PERSON = "person-";
    private static final String STATE = "state-";
    private static final int FORM = 1;
    private static final int MOST = 10_000;

    /** One enrolled person. */
    public static final class Person {
        public final int id;
        public final String name;
        /** Whether their pictures may train. */
        public final boolean trains;

        final byte[][] crops;
        /** One for each crop, made with {@code modelId}. */
        final float[][] templates;

        final String modelId;

        Person(int id, String name, boolean trains, byte[][] crops, float[][] templates, String modelId) {
            this.id = id;
            this.name = name;
            this.trains = trains;
            this.crops = crops;
            this.templates = templates;
            this.modelId = modelId;
        }

        public int numImages() {
            return crops.length;
        }

        @Override
        public String toString() {
            return "Person(" + id + ", " + crops.length + " images)";
        }
    }

    private final Vault vault;

    public Gallery(Vault vault) {
        this.vault = vault;
    }

    /** Stores a new person and returns the number that names them. */
    public synchronized int enrol(String name, byte[][] crops, float[][] templates, String modelId, boolean trains) {
        if (crops.length == 0 || crops.length != templates.length) {
            throw new MienException(ErrorCode.CONFIG, "a person needs pictures, and a template for each; enrol again");
        }
        int id = 1;
        for (Person person : people()) {
            if (person.name.equals(name)) {
                throw new MienException(
                        ErrorCode.ALREADY_EXISTS, "somebody of that name is enrolled; choose another name, or remove them");
            }
            id = Math.max(id, person.id + 1);
        }
        put(new Person(id, name, trains, crops, templates, modelId));
        return id;
    }

    public synchronized List<Person> people() {
        List<Person> people = new ArrayList<>();
        for (String record : vault.names(PERSON)) {
            people.add(parse(vault.get(record)));
        }
        return people;
    }

    /** Returns a person; throws NOT_ENROLLED. */
    public synchronized Person person(int id) {
        byte[] record = vault.get(record(id));
        if (record == null) {
            throw new MienException(ErrorCode.NOT_ENROLLED, "that person is not enrolled; enrol them first");
        }
        return parse(record);
    }

    /** Returns whether a person is here and agrees to training. */
    public synchronized boolean stillTrains(int id) {
        byte[] record = vault.get(record(id));
        return record != null && parse(record).trains;
    }

    /** Gives or withdraws consent; what training kept of them goes with it. */
    public synchronized void setConsent(int id, boolean trains) {
        Person person = person(id);
        put(new Person(id, person.name, trains, person.crops, person.templates, person.modelId));
        if (!trains) {
            forgetStates(id);
        }
    }

    /** Returns the model that a person's templates are of. */
    public synchronized String modelOf(int id) {
        return person(id).modelId;
    }

    /** Returns a person's aligned crops, to embed them with another model. */
    public synchronized byte[][] cropsOf(int id) {
        return person(id).crops;
    }

    /** Replaces a person's templates by those of another model. */
    public synchronized void reembed(int id, float[][] templates, String modelId) {
        Person person = person(id);
        put(new Person(id, person.name, person.trains, person.crops, templates, modelId));
    }

    /** Removes a person with all that was kept of them. */
    public synchronized void remove(int id) {
        forgetStates(id);
        vault.remove(record(id));
    }

    /** Destroys everything: the key first. */
    public synchronized void wipe() {
        vault.wipe();
    }

    /** Returns what training keeps of a person for a task; nothing before the first round that counted. */
    synchronized Map<String, Tensor> state(int person, String taskId) {
        byte[] record = vault.get(stateRecord(person, taskId));
        return record == null ? new LinkedHashMap<String, Tensor>() : tensors(record);
    }

    synchronized void putState(int person, String taskId, Map<String, Tensor> state) {
        vault.put(stateRecord(person, taskId), bytes(state));
    }

    private void forgetStates(int person) {
        for (String name : vault.names(STATE + person + "-")) {
            vault.remove(name);
        }
    }

    private static String record(int id) {
        return PERSON + String.format("%06d", id);
    }

    private static String stateRecord(int person, String taskId) {
        return STATE + person + "-" + Bytes.hex(Bytes.sha256(Bytes.utf8(taskId))).substring(0, 32);
    }

    // Records as bytes

    private void put(Person person) {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (DataOutputStream out = new DataOutputStream(bytes)) {
            out.writeByte(FORM);
            out.writeInt(person.id);
            out.writeUTF(person.name);
            out.writeBoolean(person.trains);
            out.writeUTF(person.modelId);
            out.writeInt(person.crops.length);
            for (int i = 0; i < person.crops.length; i++) {
                write(out, person.crops[i]);
                write(out, Bytes.littleEndian(person.templates[i]));
            }
        } catch (IOException error) {
            throw new IllegalStateException("memory can be written to", error);
        }
        vault.put(record(person.id), bytes.toByteArray());
    }

    private static Person parse(byte[] record) {
        try (DataInputStream in = new DataInputStream(new ByteArrayInputStream(record))) {
            require(in.readByte() == FORM);
            int id = in.readInt();
            String name = in.readUTF();
            boolean trains = in.readBoolean();
            String modelId = in.readUTF();
            int count = in.readInt();
            require(count > 0 && count <= MOST);
            byte[][] crops = new byte[count][];
            float[][] templates = new float[count][];
            for (int i = 0; i < count; i++) {
                crops[i] = read(in);
                templates[i] = Bytes.floats(read(in));
            }
            return new Person(id, name, trains, crops, templates, modelId);
        } catch (IOException error) {
            throw damaged(error);
        }
    }

    static byte[] bytes(Map<String, Tensor> tensors) {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (DataOutputStream out = new DataOutputStream(bytes)) {
            out.writeInt(tensors.size());
            for (Map.Entry<String, Tensor> each : tensors.entrySet()) {
                out.writeUTF(each.getKey());
                out.writeInt(each.getValue().shape.length);
                for (long dimension : each.getValue().shape) {
                    out.writeLong(dimension);
                }
                write(out, Bytes.littleEndian(each.getValue().values));
            }
        } catch (IOException error) {
            throw new IllegalStateException("memory can be written to", error);
        }
        return bytes.toByteArray();
    }

    static Map<String, Tensor> tensors(byte[] record) {
        Map<String, Tensor> tensors = new LinkedHashMap<>();
        try (DataInputStream in = new DataInputStream(new ByteArrayInputStream(record))) {
            int count = in.readInt();
            require(count >= 0 && count <= MOST);
            for (int i = 0; i < count; i++) {
                String name = in.readUTF();
                int rank = in.readInt();
                require(rank >= 0 && rank <= 8);
                long[] shape = new long[rank];
                for (int axis = 0; axis < rank; axis++) {
                    shape[axis] = in.readLong();
                }
                tensors.put(name, new Tensor(Bytes.floats(read(in)), shape));
            }
        } catch (IOException error) {
            throw damaged(error);
        }
        return tensors;
    }

    static void write(DataOutputStream out, byte[] data) throws IOException {
        out.writeInt(data.length);
        out.write(data);
    }

    static byte[] read(DataInputStream in) throws IOException {
        int length = in.readInt();
        require(length >= 0 && length <= in.available());
        byte[] data = new byte[length];
        in.readFully(data);
        return data;
    }

    private static void require(boolean holds) {
        if (!holds) {
            throw damaged(null);
        }
    }

    private static MienException damaged(Throwable cause) {
        return new MienException(
                ErrorCode.CORRUPT_DATA, "a stored record is of another form; upgrade this program, or wipe and enrol", cause);
    }
}
