package mien.app;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import android.app.Activity;
import android.content.Intent;
import io.grpc.stub.StreamObserver;
import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.security.GeneralSecurityException;
import java.util.Collections;
import java.util.EnumSet;
import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;
import java.util.function.Supplier;
import mien.app.keys.FakeKeyStore;
import mien.app.keys.FakeKeyStore.Fault;
import mien.app.people.DeleteActivity;
import mien.client.ErrorCode;
import mien.client.Inside;
import mien.client.MienException;
import mien.client.Status;
import mien.client.rounds.Event;
import mien.client.rounds.Listener;
import mien.client.rounds.Outcome;
import mien.client.rounds.PendingRounds;
import mien.client.secagg.Profile;
import mien.client.store.Folder;
import mien.client.store.Vault;
import mien.client.tasks.Agreement;
import mien.client.tasks.Disclosure;
import mien.client.wire.Bytes;
import mien.client.wire.Json;
import mien.v1.Common.HelloReply;
import mien.v1.Common.HelloRequest;
import mien.v1.RoundsGrpc;
import mien.v1.RoundsOuterClass.CheckInReply;
import mien.v1.RoundsOuterClass.CheckInRequest;
import mien.v1.RoundsOuterClass.FollowRoundRequest;
import mien.v1.RoundsOuterClass.LeaveRoundReply;
import mien.v1.RoundsOuterClass.LeaveRoundRequest;
import mien.v1.RoundsOuterClass.SetParticipationReply;
import mien.v1.RoundsOuterClass.SetParticipationRequest;
import mien.v1.RoundsOuterClass.Stage;
import mien.v1.RoundsOuterClass.StageEvent;
import mien.v1.RoundsOuterClass.UploadStatus;
import mien.v1.RoundsOuterClass.UploadStatusRequest;
import mien.v1.RoundsOuterClass.Wait;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;
import org.robolectric.Robolectric;
import org.robolectric.RuntimeEnvironment;
import org.robolectric.Shadows;
import org.robolectric.annotation.Config;

/**
 * Every way in which a key store fails, while a phone does whatever it does: what its owner is told, and what is kept. The
 * app and its calls of AndroidKeyStore are the real ones; the key store behind them is made up.
 */
@Config(application = App.class)
public class KeyFaultsTest extends ScreenRunner {
    private static final String TABLE = "docs/key-store-faults.md";
    private static final String GALLERY = "mien.wrapping.gallery";
    private static final byte[][] CROPS = new byte[3][112 * 112 * 3];
    private static final Agreement AGREED = new Agreement(4, EnumSet.of(Profile.MALICIOUS_SERVER));

    /** A coordinator that knows of one round, and says of it what a test wants. */
    private static final class Coordinator extends RoundsGrpc.RoundsImplBase {
        boolean counts;
        int numLeft;

        private static <T> void answer(StreamObserver<T> to, T reply) {
            to.onNext(reply);
            to.onCompleted();
        }

        @Override
        public void hello(HelloRequest request, StreamObserver<HelloReply> to) {
            answer(to, HelloReply.newBuilder().setProtocolVersion(1).setUnixMs(System.currentTimeMillis()).build());
        }

        @Override
        public void checkIn(CheckInRequest request, StreamObserver<CheckInReply> to) {
            answer(to, CheckInReply.newBuilder().setWait(Wait.newBuilder().setRetryAfterS(60)).build());
        }

        @Override
        public void getUploadStatus(UploadStatusRequest request, StreamObserver<UploadStatus> to) {
            answer(to, UploadStatus.newBuilder().setAccepted(counts).build());
        }

        @Override
        public void setParticipation(SetParticipationRequest request, StreamObserver<SetParticipationReply> to) {
            answer(to, SetParticipationReply.getDefaultInstance());
        }

        @Override
        public void leaveRound(LeaveRoundRequest request, StreamObserver<LeaveRoundReply> to) {
            numLeft++;
            answer(to, LeaveRoundReply.getDefaultInstance());
        }

        @Override
        public void followRound(FollowRoundRequest request, StreamObserver<StageEvent> to) {
            answer(to, StageEvent.newBuilder().setStage(Stage.CLOSED).setModelId("ab").setNumReports(4).build());
        }
    }

    private final Coordinator coordinator = new Coordinator();
    private Registrar registrar;
    private char invite = 'A';
    private String deviceId;
    private byte[] pending;

    @Before
    public void joinAndEnrol() throws IOException, GeneralSecurityException {
        FakeKeyStore.install();
        registrar = new Registrar(coordinator);
        begin();
    }

    private void begin() throws IOException {
        phone().choices.agree(true, true);
        deviceId = device().join(registrar.invite(invite++)).deviceId;
        TinyModel.install(phone(), 0.65);
        device().enrol("Ada", CROPS, true, true);
        PendingRounds.keep(rounds(), Inside.gallery(device()), task());
        pending = Files.readAllBytes(pendingFile());
    }

    private Vault rounds() {
        return new Vault(new Folder(phone().home()).folder("rounds"), phone().open().keys.sealing(), "rounds");
    }

    private Path pendingFile() {
        return phone().home().resolve("rounds/pending");
    }

    @After
    public void endWithIt() {
        registrar.close();
        FakeKeyStore.uninstall();
    }

    /** Has the program end and begin again, so that no key is in memory. */
    private static void restart() {
        ((App) RuntimeEnvironment.getApplication()).forget();
    }

    private void fail(Fault fault, String names) throws IOException {
        if (fault == Fault.TAG) {
            flip(names.equals(GALLERY) ? "gallery" : "");
        } else {
            FakeKeyStore.fail(fault, fault == Fault.DELETED && names.equals("mien.") ? "mien.wrapping." : names);
        }
        restart();
    }

    private void mend(Fault fault, String names) throws IOException {
        if (fault == Fault.TAG) {
            flip(names.equals(GALLERY) ? "gallery" : "");
        }
        FakeKeyStore.fail(Fault.NONE, "");
        restart();
    }

    /** Changes one bit of each key that lies sealed, or changes it back. */
    private static void flip(String names) throws IOException {
        for (File file : phone().home().resolve("keys").toFile().listFiles()) {
            if (file.isFile() && file.getName().startsWith(names)) {
                byte[] sealed = Files.readAllBytes(file.toPath());
                sealed[sealed.length - 1] ^= 1;
                Files.write(file.toPath(), sealed);
            }
        }
    }

    /** Returns what the owner is told of an action: nothing where it worked. */
    private static ErrorCode told(Supplier<?> action) {
        try {
            Object done = action.get();
            if (done instanceof Status && ((Status) done).lostPeople) {
                return ErrorCode.KEY_LOST;
            }
            return done instanceof Outcome && !((Outcome) done).code.isEmpty() ? ErrorCode.of(((Outcome) done).code) : null;
        } catch (MienException error) {
            return error.code();
        }
    }

    private static Outcome takePart() {
        return device().participate(AGREED, Collections::emptyList, new Listener() {
            @Override
            public void disclose(Disclosure disclosure) {}

            @Override
            public void on(Event event) {}
        });
    }

    private Map<String, Supplier<?>> operations() {
        Map<String, Supplier<?>> operations = new LinkedHashMap<>();
        operations.put("open the app", () -> device().status());
        operations.put("enrol", () -> device().enrol("Bo", CROPS, false, true));
        operations.put("recognise", () -> device().verify(1, CROPS[0]));
        operations.put("check in", this::checkIn);
        operations.put("train, keep it", this::keep);
        operations.put("go on with a round", KeyFaultsTest::takePart);
        operations.put(
                "withdraw",
                () -> {
                    device().setConsent(1, false);
                    return null;
                });
        return operations;
    }

    /** Without the round that is waiting to be sent. */
    private Object checkIn() {
        try {
            Files.deleteIfExists(pendingFile()); // where it is lost for good, opening dropped it
            try {
                return takePart();
            } finally {
                Files.write(pendingFile(), pending);
            }
        } catch (IOException error) {
            throw new AssertionError(error);
        }
    }

    /** What was trained is sealed in place of what is there, or the older one stays. */
    private Object keep() {
        try {
            PendingRounds.keep(rounds(), Inside.gallery(device()), task());
        } catch (IOException error) {
            throw new AssertionError(error);
        }
        return null;
    }

    /** Returns a task that a phone agrees to whose owner wants sums of four. */
    private static byte[] task() throws IOException {
        Path tasks = Paths.get(System.getProperty("mien.root"), "tests/golden/client/tasks.json");
        return Bytes.utf8(Json.object(Files.readAllBytes(tasks), "the tasks").objects("tasks").get(0).text("json"));
    }

    private static ErrorCode expected(Fault fault) {
        switch (fault) {
            case NONE:
                return null;
            case NOT_AUTHENTICATED:
            case AUTHENTICATION_REQUIRED:
                return ErrorCode.KEY_LOCKED;
            case INVALIDATED:
            case DELETED:
                return ErrorCode.KEY_LOST;
            case TAG:
                return ErrorCode.CORRUPT_DATA;
            default:
                return ErrorCode.KEY_STORE;
        }
    }

    private static String word(ErrorCode told) {
        if (told == null) {
            return "works";
        }
        switch (told) {
            case KEY_STORE:
                return "try again later";
            case KEY_LOCKED:
                return "unlock the phone";
            case KEY_LOST:
                return "the key is lost";
            case CORRUPT_DATA:
                return "it was changed";
            default:
                return told.code();
        }
    }

    private String kept() {
        Status status = device().status();
        assertEquals(deviceId, status.deviceId);
        assertTrue("the phone belongs to its fleet", status.joined);
        boolean isAda = device().people().stream().anyMatch(person -> person.name.equals("Ada") && !person.isDamaged);
        return (isAda ? "people" : "no people") + (status.pendingRound.isEmpty() ? "" : ", the round");
    }

    @Test
    public void noFaultOfAKeyStoreLosesAnything() throws IOException {
        StringBuilder head = new StringBuilder("| fault");
        StringBuilder line = new StringBuilder("|---|");
        for (String operation : operations().keySet()) {
            head.append(" | ").append(operation);
            line.append("---|");
        }
        head.append(" | kept |\n").append(line).append("---|\n");
        StringBuilder table = new StringBuilder();
        for (Fault fault : EnumSet.complementOf(EnumSet.of(Fault.NONE))) {
            table.append("| ").append(fault.name().toLowerCase(Locale.ROOT));
            String keeps = null;
            for (Map.Entry<String, Supplier<?>> operation : operations().entrySet()) {
                String cell = fault + ", " + operation.getKey();
                fail(fault, "mien.");
                ErrorCode told = told(operation.getValue());
                mend(fault, "mien.");
                assertTrue(cell + " says " + told, told == expected(fault) || fault.isForGood());
                table.append(" | ").append(word(told));
                boolean withdrew = operation.getKey().equals("withdraw");
                String now = kept();
                assertTrue(cell + " lost people", now.startsWith("people"));
                assertEquals(cell + ": withdrawn, and nothing else is", !withdrew, Inside.gallery(device()).stillTrains(1));
                if (withdrew) {
                    assertEquals("what was trained goes with it", "people", now);
                    agreeAgain();
                } else {
                    keeps = keeps == null || keeps.length() > now.length() ? now : keeps;
                    assertTrue(cell + " lost the round", fault.isForGood() || now.endsWith("the round"));
                    Files.write(pendingFile(), pending);
                }
            }
            table.append(" | ").append(keeps).append(" |\n");
        }
        String made = head.append(table).toString();
        Files.write(Paths.get(System.getProperty("mien.pictures"), "key-store-faults.md"), made.getBytes(StandardCharsets.UTF_8));
        Path page = Paths.get(System.getProperty("mien.root"), TABLE);
        String text = new String(Files.readAllBytes(page), StandardCharsets.UTF_8);
        assertTrue("the table in " + TABLE + " is another one; put this there:\n" + made, text.contains(made));
    }

    /** With a new mark, as any agreement, and so a round of its own. */
    private void agreeAgain() throws IOException {
        device().setConsent(1, true);
        PendingRounds.keep(rounds(), Inside.gallery(device()), task());
        pending = Files.readAllBytes(pendingFile());
    }

    /** The keys of rounds work, that of people alone does not: before, the round was dropped as one of nobody's. */
    @Test
    public void aRoundWaitsForTheGallerysKeyAlone() throws IOException {
        for (Fault fault : EnumSet.complementOf(EnumSet.of(Fault.NONE))) {
            if (fault.isForGood()) {
                continue;
            }
            for (boolean counts : new boolean[] {false, true}) {
                coordinator.counts = counts;
                coordinator.numLeft = 0;
                fail(fault, GALLERY);
                assertEquals(fault.name(), expected(fault), told(KeyFaultsTest::takePart));
                assertEquals("only a phone whose vector is in says that it cannot help", counts ? 1 : 0, coordinator.numLeft);
                mend(fault, GALLERY);
                assertEquals(fault.name(), "people, the round", kept());
            }
        }
        coordinator.counts = true;
        restart();
        assertEquals(Outcome.Kind.COUNTED, takePart().kind);
        assertEquals("people", kept());
    }

    @Test
    public void homeOffersToDeleteOnlyWhatIsKnownToBeLost() throws IOException {
        for (Fault fault : Fault.values()) {
            fail(fault, GALLERY);
            Activity home = Robolectric.buildActivity(MainActivity.class).setup().get();
            String working = home.getString(R.string.home_working);
            await(fault + " is told", () -> !text(home, R.id.next_title).equals(working));
            home.findViewById(R.id.next).performClick();
            Intent led = Shadows.shadowOf(home).getNextStartedActivity();
            boolean deletes = led != null && led.getComponent().getClassName().equals(DeleteActivity.class.getName());
            assertEquals(fault.name(), fault.isForGood(), deletes);
            boolean waits = text(home, R.id.next_title).equals(home.getString(R.string.waits_title));
            assertEquals(fault.name(), fault != Fault.NONE && !fault.isForGood(), waits);
            if (fault == Fault.NOT_AUTHENTICATED) {
                assertEquals(home.getString(R.string.error_key_locked), text(home, R.id.next_text));
                draw(home, "home-key-locked");
            }
            mend(fault, GALLERY);
            if (waits) { // the same button, once the key store answers
                home.findViewById(R.id.next).performClick();
                await("home goes on", () -> !text(home, R.id.next_title).equals(home.getString(R.string.waits_title)));
            }
        }
    }

    @Test
    public void everythingIsDeletedHoweverTheKeyStoreFails() throws IOException {
        for (Fault fault : Fault.values()) {
            fail(fault, "mien.");
            everythingDeleted(5_000);
            FakeKeyStore.fail(Fault.NONE, "");
            restart();
            assertFalse(fault.name(), device().hasJoined());
            assertTrue(fault.name(), device().people().isEmpty());
            begin();
        }
    }
}
